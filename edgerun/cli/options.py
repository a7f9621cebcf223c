"""Options that several commands share, and what they mean to ``edgerun.load``."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from edgerun.cli.screen.visible import folded, visible

if TYPE_CHECKING:
    from edgerun.engine.chooser.option import Option
    from edgerun.llm.llm import LLM

Command: TypeAlias = Callable[..., None]

Model = Annotated[
    Path | None,
    typer.Argument(
        metavar="MODEL",
        help="Folder of a bundle; the model that comes with edgerun if left out.",
    ),
]
NamedModel = Annotated[
    Path | None,
    typer.Option("-m", "--model", metavar="FOLDER", help="The same as MODEL."),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "-t", "--threads", metavar="N", help="Worker threads; one per fast core if left out."
    ),
]
BackendName = Annotated[
    str | None,
    typer.Option("--backend", metavar="NAME", help="Use this back-end, e.g. cpu or reference."),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="NAME", help="Device of the back-end, where it has several, e.g. cosim."
    ),
]
Context = Annotated[
    int | None,
    typer.Option("-c", "--context", metavar="N", help="Tokens of prompt and reply together."),
]
KVCacheType = Annotated[
    str,
    typer.Option(
        "--kv-cache", metavar="TYPE", help="Storage of keys and values: fp32, fp16 or int8."
    ),
]
Pack = Annotated[
    str | None,
    typer.Option(
        "--pack",
        metavar="TYPE",
        help="Ternary weights in memory: two_bits, or trits (1.6 bits), smaller and slower; "
        "what the bundle asks for if left out.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
ShowStats = Annotated[bool, typer.Option("--stats", help="Show speed and memory on stderr.")]


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "Examples:\n" + "\n".join(f"  {line}" for line in lines)


def model_of(argument: Path | None, option: Path | None) -> Path | None:
    """The model, which may be named as an argument or with ``-m``.

    Raises:
        InputError: both name one, and not the same.
    """
    if argument is not None and option is not None and argument != option:
        from edgerun.errors import InputError

        raise InputError(f"two models are named, {argument} and {option}: leave one out")
    return argument if option is None else option


def say(text: str) -> None:
    """Prints a line about what is going on; never to stdout."""
    print(folded(f"edgerun: {visible(text)}", sys.stderr), file=sys.stderr, flush=True)


def given(**values: Any) -> dict[str, Any]:
    """Drops options that were left out, so that the model's recommendation holds."""
    return {name: value for name, value in values.items() if value is not None}


def with_sampling(command: Command) -> Command:
    """Gives a command an option for everything that can be asked of a reply.

    They stand in the place of its parameter ``sampling``, which becomes a dictionary of those that
    were given, all checked before a model is loaded.
    """
    from edgerun.engine.chooser.params import SamplingParams, all_options

    offered = {entry.name: entry for entry in all_options()}
    parameters = dict(inspect.signature(command, eval_str=True).parameters)
    place = list(parameters).index("sampling")
    own = [entry for name, entry in parameters.items() if name != "sampling"]
    signature = inspect.Signature([*own[:place], *map(_parameter, offered.values()), *own[place:]])

    @functools.wraps(command)
    def run(**values: Any) -> None:
        sampling = {}
        for name, entry in offered.items():
            value = values.pop(name)
            if value is not None and value != []:
                sampling[name] = entry.read(value) if isinstance(value, str) else value
        SamplingParams(**sampling)
        command(**values, sampling=sampling)

    run.__dict__["__signature__"] = signature
    run.__annotations__ = {name: entry.annotation for name, entry in signature.parameters.items()}
    return run


def _parameter(entry: Option) -> inspect.Parameter:
    """An option of the command line."""
    long = f"--{entry.name.replace('_', '-')}"
    shown = typer.Option(
        *filter(None, (entry.letter, long)),
        metavar=entry.kind.metavar or None,
        help=entry.help,
    )
    return inspect.Parameter(
        entry.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=None,
        annotation=Annotated[entry.kind.flag | None, shown],
    )


def load(model: Path | None, **options: Any) -> LLM:
    """Loads a model for a command; slow steps and warnings are announced on stderr."""
    import logging

    from edgerun.cli.screen.progress import first_run
    from edgerun.llm import llm

    logging.basicConfig(format="edgerun: %(message)s", level=logging.WARNING)
    with first_run() as progress:
        return llm.load(model, progress=progress, **given(**options))
