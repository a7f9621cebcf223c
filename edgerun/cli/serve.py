"""``edgerun serve``: a model for programs, over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgerun.cli import options
from edgerun.cli.screen.messages import say, tell

if TYPE_CHECKING:
    from edgerun.server.options import ServerOptions

MAX_KEY_BYTES = 4096
EXAMPLES = options.examples(
    "edgerun serve",
    "edgerun serve ./my-model --port 9000 --parallel 8",
    "edgerun serve ./my-model --host 0.0.0.0 --api-key-file key.txt",
)


_Host = Annotated[str, typer.Option("--host", metavar="HOST", help="Address to listen at.")]
_Port = Annotated[
    int, typer.Option("--port", metavar="N", help="Port to listen at; 0 takes a free one.")
]
_KeyFile = Annotated[
    Path | None,
    typer.Option("--api-key-file", metavar="FILE", help="Callers have to show the key in it."),
]
_Origins = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-origin", metavar="ORIGIN", help="Let pages of this origin call; can be repeated."
    ),
]
_Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host", metavar="NAME", help="Another name of this machine; can be repeated."
    ),
]
_Name = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="What callers know the model as.")
]
_Parallel = Annotated[
    int | None,
    typer.Option("--parallel", metavar="N", help="Replies that run at a time. [default: 4]"),
]
_Queue = Annotated[
    int, typer.Option("--queue", metavar="N", help="Replies that may wait for their turn.")
]
_Quiet = Annotated[bool, typer.Option("--quiet", help="No line for each answer.")]


@options.with_chatting
def serve(
    model: options.Model = None,
    named: options.NamedModel = None,
    host: _Host = "127.0.0.1",
    port: _Port = 8080,
    key_file: _KeyFile = None,
    origins: _Origins = None,
    hosts: _Hosts = None,
    name: _Name = None,
    parallel: _Parallel = None,
    queue: _Queue = 64,
    quiet: _Quiet = False,
    *,
    loading: dict[str, Any],
) -> None:
    """Replies run together, each as if it were alone."""
    ServerOptions, Server, serving = _parts()
    key = None if key_file is None else _key(key_file)
    settings = ServerOptions(host, port, key, origins or (), hosts or (), name, queue)
    folder = options.model_of(model, named)
    with (
        serving.listen(host, port) as listening,
        options.load(folder, max_sessions=parallel, **loading) as llm,
    ):
        server = Server(llm, settings, (lambda line: None) if quiet else tell)
        at_a_time = llm.model.options.max_sessions
        address, replies = serving.address_of(listening), f"repl{'y' if at_a_time == 1 else 'ies'}"
        said = f"{server.name} answers at {address}/v1, {at_a_time} {replies} at a time"
        said += f"; to chat, open {address}"
        serving.serve(server, listening, lambda stop: say(f"{said}; Ctrl-C ends it"))
    say("ended")


def _key(path: Path) -> str:
    from edgerun.errors import InputError

    try:
        with path.open("rb") as file:  # of a pipe too, which may have no end
            data = file.read(MAX_KEY_BYTES + 1)
        if len(data) > MAX_KEY_BYTES:
            raise InputError(f"the key in {path} has more than {MAX_KEY_BYTES} bytes")
        return data.decode("utf-8").strip()
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
