"""Options that several commands share, and what they mean to ``edgerun.load``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgerun.cli.screen.visible import folded, visible

if TYPE_CHECKING:
    from edgerun.llm.llm import LLM

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
        help="Ternary weights in memory: two_bits, trits (1.6 bits) or auto, the faster; "
        "what the bundle asks for if left out.",
    ),
]
MaxTokens = Annotated[
    int | None, typer.Option("-n", "--max-tokens", metavar="N", help="Most tokens to generate.")
]
Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature", metavar="X", help="0 takes the likeliest token every time; also --temp."
    ),
]
TopK = Annotated[
    int | None, typer.Option("--top-k", metavar="N", help="Keep the k likeliest tokens.")
]
TopP = Annotated[
    float | None,
    typer.Option("--top-p", metavar="X", help="Keep the likeliest tokens up to this probability."),
]
MinP = Annotated[
    float | None,
    typer.Option(
        "--min-p", metavar="X", help="Drop tokens less likely than this share of the top."
    ),
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option("--repetition-penalty", metavar="X", help="Above 1 discourages repetition."),
]
Seed = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="Makes the choice repeatable.")
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="TEXT", help="End the reply at this text; can be repeated."),
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


def check_sampling(sampling: dict[str, Any]) -> None:
    """Complains about sampling options before a model is loaded.

    Raises:
        SamplingError: one is outside its range.
    """
    from edgerun.engine.sampling.params import SamplingParams

    SamplingParams(**sampling)


def load(model: Path | None, **options: Any) -> LLM:
    """Loads a model for a command; slow steps and warnings are announced on stderr."""
    import logging

    from edgerun.cli.screen.progress import first_run
    from edgerun.llm import llm

    logging.basicConfig(format="edgerun: %(message)s", level=logging.WARNING)
    with first_run() as progress:
        return llm.load(model, progress=progress, **given(**options))
