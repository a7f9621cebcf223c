"""Options that several commands share, and what they mean to ``edgerun.load``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

from edgerun.cli.screen.messages import say
from edgerun.cli.screen.progress import first_run

if TYPE_CHECKING:
    from edgerun.engine.chooser.option import Option
    from edgerun.llm.llm import LLM

Command: TypeAlias = Callable[..., None]
T = TypeVar("T")

MODEL_HELP = "Folder of a bundle; the model that comes with edgerun if left out."
Model = Annotated[Path | None, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
Prompt = Annotated[
    str | None,
    typer.Option(
        "-p",
        "--prompt",
        metavar="TEXT",
        help="The same as TEXT; '-' is stdin alone. What comes through stdin is put behind it.",
    ),
]
NamedModel = Annotated[
    Path | None,
    typer.Option("-m", "--model", metavar="FOLDER", help="The same as MODEL."),
]
System = Annotated[
    str | None,
    typer.Option("--system", metavar="TEXT", help="System message for a model with a chat format."),
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Take the prompt as it is, without the chat format.")
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
        "--device",
        metavar="NAME",
        help="Device of the back-end, where it has several, e.g. cosim; "
        "or both, e.g. openvino:NPU.",
    ),
]
Place = Annotated[
    str | None,
    typer.Option(
        "--place",
        metavar="PLACES",
        help="Where parts of the work go, e.g. prefill=openvino:NPU,decode=cpu.",
    ),
]
Require = Annotated[
    str | None,
    typer.Option(
        "--require",
        metavar="NAME",
        help="End with an error if this back-end fails, e.g. openvino:NPU, instead of going on "
        "with the CPU.",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        "-c",
        "--context",
        metavar="N",
        help="Tokens that a text may have, prompt and reply together.",
    ),
]
KVCacheType = Annotated[
    str | None,
    typer.Option(
        "--kv-cache",
        metavar="TYPE",
        help="Storage of keys and values: fp32, fp16 (if left out) or int8; int4 on `reference`.",
    ),
]
Latent = Annotated[
    str | None,
    typer.Option(
        "--latent",
        metavar="WHEN",
        help="When models like DeepSeek's, whose keys and values are made of one narrow row a "
        "token, keep that row: auto (if left out), on the processor with fp16 or fp32, or never.",
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
Prefill = Annotated[
    str | None,
    typer.Option(
        "--prefill",
        metavar="TYPE",
        help="Prompts: exact, with the bits of replies (if left out), or fast, by weights that are "
        "rounded again and take more memory.",
    ),
]
Attention = Annotated[
    str | None,
    typer.Option(
        "--attention",
        metavar="TYPE",
        help="Prompts attend: exact, with the bits of replies (if left out), or fast, in bfloat16 "
        "on processors with AMX or AVX512_BF16.",
    ),
]
ExpertMemory = Annotated[
    str | None,
    typer.Option(
        "--expert-memory",
        metavar="SIZE",
        help="Memory for experts, e.g. 4G, or 25% of what all take; others are read from the disk "
        "as they are needed. As much as is free, where they do not fit, if left out.",
    ),
]
GpuMemory = Annotated[
    str | None,
    typer.Option(
        "--gpu-memory",
        metavar="SIZE",
        help="Memory of the GPU for experts, e.g. 6G, with --device cuda:0; what is free there, "
        "less a margin, if left out.",
    ),
]
ExpertTrace = Annotated[
    Path | None,
    typer.Option(
        "--expert-trace",
        metavar="FILE",
        help="What `edgerun trace` wrote: a device that shares layers of experts begins with those "
        "that it names most often.",
    ),
]
Share = Annotated[
    str | None,
    typer.Option(
        "--share",
        metavar="WHEN",
        help="When the device that was named gets a part of layers of experts: auto (if left out), "
        "where that is faster than the processor alone, or always.",
    ),
]
Think = Annotated[
    bool | None,
    typer.Option(
        "--think/--no-think",
        help="Whether replies begin with thinking, for models whose chat format has a switch for "
        "it; what the format does by itself if left out.",
    ),
]
TemplateValues = Annotated[
    list[str] | None,
    typer.Option(
        "--template-value",
        metavar="NAME=VALUE",
        help="What else the chat format is told, e.g. reasoning_effort=high; may be repeated.",
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft",
        metavar="NAME",
        help="What guesses how replies go on, so that several tokens are computed at a time where "
        "that is faster; the text stays the same: lookup, by what was said before (if left out), "
        "or none.",
    ),
]
LOADING: dict[str, Any] = {
    "threads": Threads,
    "backend": BackendName,
    "device": Device,
    "place": Place,
    "require": Require,
    "context": Context,
    "kv_cache": KVCacheType,
    "latent": Latent,
    "pack": Pack,
    "prefill": Prefill,
    "attention": Attention,
    "expert_memory": ExpertMemory,
    "gpu_memory": GpuMemory,
    "expert_trace": ExpertTrace,
    "share": Share,
}
CHATTING: dict[str, Any] = {"draft": Draft, "think": Think, "template_values": TemplateValues}
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
HideThinking = Annotated[
    bool,
    typer.Option("--hide-thinking", help="Show how long the model thinks instead of what."),
]
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


def given(**values: Any) -> dict[str, Any]:
    """Drops options that were left out, so that the model's recommendation holds."""
    return {name: value for name, value in values.items() if value is not None}


def with_loading_of(*names: str) -> Callable[[Command], Command]:
    """Gives a command some of the options that say how a model is loaded, by their names.

    They stand in the place of its parameter ``loading``, which becomes a dictionary of those that
    were given, for ``load`` or ``LoadOptions``. A command may have one of them as a parameter of
    its own.
    """

    def give(command: Command) -> Command:
        declared, kind = inspect.signature(command).parameters, inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter(name, kind, default=None, annotation=offered[name])
            for name in names
            if name not in declared
        ]
        return _spread(command, "loading", parameters, _loading)

    offered = {**LOADING, **CHATTING}
    return give


with_loading = with_loading_of(*LOADING)
with_chatting = with_loading_of(*LOADING, *CHATTING)


def _loading(values: dict[str, Any]) -> dict[str, Any]:
    """Those that were given, as ``load`` has them."""
    assignments = values.pop("template_values", None)
    return given(**values, template_values=_named(assignments) if assignments else None)


def _named(assignments: list[str]) -> dict[str, Any]:
    """Names and values of ``NAME=VALUE``; what is no JSON is text.

    Raises:
        InputError: one is something else, or a name is there twice.
    """
    import json

    from edgerun.errors import InputError

    named: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or name in named:
            problem = "is there twice" if equals else "has no value"
            raise InputError(
                f"--template-value {assignment}: the name {problem}; expected NAME=VALUE"
            )
        try:
            named[name] = json.loads(value)
        except ValueError:
            named[name] = value
        except RecursionError as error:
            raise InputError(f"--template-value {name}: lists in lists, too deep") from error
    return named


def with_sampling(command: Command) -> Command:
    """Gives a command an option for everything that can be asked of a reply's text.

    They stand in the place of its parameter ``sampling``, which becomes a dictionary of those that
    were given, all checked before a model is loaded. A command may have one of them as a parameter
    of its own.
    """
    from edgerun.engine.chooser.params import text_options

    return _with_sampling(command, text_options())


def with_all_sampling(command: Command) -> Command:
    """Like ``with_sampling``, with what can be told of a reply beside its text."""
    from edgerun.engine.chooser.params import all_options

    return _with_sampling(command, all_options())


def _with_sampling(command: Command, entries: Sequence[Option]) -> Command:
    from edgerun.engine.chooser.params import SamplingParams

    offered = {entry.name: entry for entry in entries}

    def collect(values: dict[str, Any]) -> dict[str, Any]:
        sampling = {
            name: offered[name].read(value) if isinstance(value, str) else value
            for name, value in values.items()
            if value is not None and value != []
        }
        SamplingParams(**sampling)
        return sampling

    declared = inspect.signature(command).parameters
    parameters = [_parameter(entry) for name, entry in offered.items() if name not in declared]
    return _spread(command, "sampling", parameters, collect)


def _spread(
    command: Command,
    name: str,
    parameters: list[inspect.Parameter],
    collect: Callable[[dict[str, Any]], dict[str, Any]],
) -> Command:
    """Puts parameters in the place of one that takes a dictionary of their values."""
    own = inspect.signature(command, eval_str=True).parameters
    place = list(own).index(name)
    others = [parameter for key, parameter in own.items() if key != name]
    signature = inspect.Signature([*others[:place], *parameters, *others[place:]])

    @functools.wraps(command)
    def run(**values: Any) -> None:
        taken = {parameter.name: values.pop(parameter.name) for parameter in parameters}
        command(**values, **{name: collect(taken)})

    run.__dict__["__signature__"] = signature
    run.__annotations__ = {key: entry.annotation for key, entry in signature.parameters.items()}
    return run


def _parameter(entry: Option) -> inspect.Parameter:
    """An option of the command line."""
    long = f"--{entry.name.replace('_', '-')}"
    option = typer.Option(
        *filter(None, (entry.letter, long)),
        metavar=entry.kind.metavar or None,
        help=entry.help,
    )
    return inspect.Parameter(
        entry.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[entry.kind.flag | None, option],
    )


def load(model: Path | None, **options: Any) -> LLM:
    """Loads a model for a command; slow steps, warnings and forecasts are said on stderr."""
    from edgerun.llm import llm

    loaded = load_by(llm.load, model, **options)
    say_forecast(loaded)
    return loaded


def say_forecast(llm: LLM, *, corrected: bool = False) -> None:
    """Says what to expect of a model that reads experts while it runs, or only how that changed."""
    expected = llm.forecast()
    if expected and (not corrected or expected.calibrated_bytes_s is not None):
        say(expected.line())


def load_by(loader: Callable[..., T], model: Path | None, **options: Any) -> T:
    """Like ``load``, by another function than ``llm.load``."""
    with first_run() as progress:
        return loader(model, progress=progress, **given(**options))
