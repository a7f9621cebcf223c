"""``edgerun serve``: a model for programs, over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgerun.cli import options
from edgerun.cli.screen.messages import say, tell

if TYPE_CHECKING:
    from edgerun.server.options import ServerOptions

EXAMPLES = options.examples(
    "edgerun serve",
    "edgerun serve ./my-model --port 9000 --parallel 8",
    "edgerun serve ./my-model --host 0.0.0.0 --api-key-file key.txt",
)


@options.with_chatting
def serve(
    model: options.Model = None,
    named: options.NamedModel = None,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="Address to listen at.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="N", help="Port to listen at; 0 takes a free one.")
    ] = 8080,
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-key-file", metavar="FILE", help="Callers have to show the key in this file."
        ),
    ] = None,
    origins: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin", metavar="ORIGIN", help="Let pages of this origin call; repeatable."
        ),
    ] = None,
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", metavar="NAME", help="A name of this machine, for Host; repeatable."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="What callers know the model as."),
    ] = None,
    parallel: Annotated[
        int | None, typer.Option("--parallel", metavar="N", help="Replies that run at a time.")
    ] = None,
    queue: Annotated[
        int, typer.Option("--queue", metavar="N", help="Replies that may wait for their turn.")
    ] = 64,
    quiet: Annotated[bool, typer.Option("--quiet", help="No line for each answer.")] = False,
    *,
    loading: dict[str, Any],
) -> None:
    """Replies run together, each as if it were alone."""
    ServerOptions, Server, serving = _parts()
    settings = ServerOptions(
        host=host,
        port=port,
        key=None if key_file is None else _key(key_file),
        origins=tuple(origins or ()),
        hosts=tuple(hosts or ()),
        name=name,
        queue=queue,
    )
    with serving.listen(host, port) as listening:
        if parallel is not None:
            loading["max_sessions"] = parallel
        with options.load(options.model_of(model, named), **loading) as llm:
            server = Server(llm, settings, (lambda line: None) if quiet else tell)
            address = serving.address_of(listening)

            def ready(stop: Callable[[], None]) -> None:
                at_a_time = llm.model.options.max_sessions
                say(
                    f"{server.name} answers at {address}/v1, {at_a_time} "
                    f"repl{'y' if at_a_time == 1 else 'ies'} at a time; Ctrl-C ends it"
                )

            serving.serve(server, listening, ready)
    say("ended")


def _key(path: Path) -> str:
    from edgerun.errors import InputError

    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InputError(f"the key in {path} cannot be read: {reason}") from error


def _parts() -> tuple[type[ServerOptions], Any, Any]:
    """What the command is made of.

    Raises:
        MissingDependencyError: the packages of the extra are not there.
    """
    from edgerun.errors import MissingDependencyError

    try:
        from edgerun.server import serving
        from edgerun.server.app import Server
        from edgerun.server.options import ServerOptions
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("edgerun"):
            raise
        raise MissingDependencyError(
            f"a server needs {error.name}, which is not installed: pip install 'edgerun[serve]'"
        ) from error
    return ServerOptions, Server, serving
