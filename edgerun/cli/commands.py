"""The commands: what there is, what is not there yet, and the page that lists them.

A command of edgerun's own is a function in the module of its name beside this one, which also has
``EXAMPLES``, the end of its help. It is imported only when asked for, so that ``edgerun run`` does
not pay for the others. Other packages add commands through the entry point group
``edgerun.commands``: a function that takes the typer application. Its module may hold a
``SUMMARY``, one line for ``edgerun --help``; it should import little, for that page waits for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from edgerun.cli.screen.nearest import nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import typer

ENTRY_POINTS = "edgerun.commands"
COMMANDS = {
    "run": "Answer or continue one prompt.",
    "chat": "Hold a conversation.",
    "serve": "Answer programs that speak OpenAI's API, or Anthropic's.",
    "bench": "Measure the speed of a model.",
    "plan": "Show which part of a model runs where.",
    "inspect": "Show what is in a bundle.",
    "perplexity": "Measure bits per byte and perplexity of a text.",
    "trace": "Write down which experts the tokens of a text go to.",
    "doctor": "Show what this machine has, and what is missing.",
    "cache": "Show or clear what edgerun keeps on this machine.",
    "completion": "Print a script that completes commands in a shell.",
}
_STORE = (
    "edgerun keeps no store of models: a model is a folder or a GGUF file of yours; `edgerun "
    "cache` shows what was made of those that are no bundles"
)
# What users of other runtimes type.
ABSENT = {
    "pull": "`edgerun chat hf:OWNER/NAME` fetches a model of Hugging Face's hub when it is first "
    "used, and `edgerun export OWNER/NAME -o FOLDER` makes a bundle of it where you want it",
    "push": "there are no uploads: a bundle is a folder, which you can copy",
    "ls": _STORE,
    "list": _STORE,
    "models": _STORE,
    "ps": "nothing of edgerun runs in the background: a model lives as long as its command",
    "stop": "nothing of edgerun runs in the background: Ctrl-C ends a command",
    "rm": "edgerun keeps no store of models: a model is a folder, which you can delete",
    "show": "it is called `edgerun inspect` here",
    "create": "it is called `edgerun export` here",
}
# Long options as llama.cpp and Ollama spell them; `-n`, `-t`, `-c` and `-m` mean the same there.
OPTION_ALIASES = {
    "temp": "temperature",
    "predict": "max-tokens",
    "n-predict": "max-tokens",
    "num-predict": "max-tokens",
    "ctx-size": "context",
    "num-ctx": "context",
    "repeat-penalty": "repetition-penalty",
    "system-prompt": "system",
    "num-thread": "threads",
}
# What errors of the library call an option that has another name on the command line.
OPTION_FIELDS = {"max_sessions": "parallel"}
_OVERVIEW = """\
Usage: edgerun COMMAND [OPTIONS]

Run language models from one ONNX folder, on this machine.

Commands:
{commands}

Options:
  -V, --version  Print the version.
  -h, --help     Show this page; after a command, its options.

Examples:
  edgerun run "Tell me a story about a dog."      the small model that comes along
  edgerun chat                                    a conversation with it
  edgerun export ./checkpoint -o ./my-model       make a bundle of your own
  edgerun run ./my-model "Once upon a time"       and run it\
"""


def application(names: Sequence[str]) -> typer.Typer:
    """Builds a typer application that knows the named commands."""
    import typer

    app = typer.Typer(
        name="edgerun",
        help="Run language models from one ONNX bundle.",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # rich takes 0.1 s to import and breaks words
        context_settings={
            "help_option_names": ["-h", "--help"],
            "token_normalize_func": option_name,
        },
    )
    app.callback()(_no_options)
    added = {point.name: point for point in added_commands()} if set(names) - {*COMMANDS} else {}
    for name in names:
        if name in COMMANDS:
            module = import_module(f"edgerun.cli.{name}")
            add = app.command(name, help=COMMANDS[name], epilog=module.EXAMPLES)
            add(getattr(module, name))
        elif name in added:
            added[name].load()(app)
    return app


def _no_options() -> None:
    """Makes the application a group even with one command."""


def option_name(name: str) -> str:
    """Our spelling of an option, or of a command, that others write in another way."""
    name = name.replace("_", "-") if len(name) > 1 else name
    return OPTION_ALIASES.get(name, name)


def overview() -> str:
    """The page of ``edgerun --help``."""
    rows = COMMANDS | {point.name: _summary(point) for point in added_commands()}
    width = max(map(len, rows))
    lines = (f"  {name:<{width}}  {summary}".rstrip() for name, summary in rows.items())
    return _OVERVIEW.format(commands="\n".join(lines))


def _summary(point: EntryPoint) -> str:
    module = sys.modules[point.load().__module__]
    return str(getattr(module, "SUMMARY", ""))


def entry_points(group: str) -> Iterable[EntryPoint]:
    """What other packages announce; imported when needed, for that takes 30 ms."""
    from importlib import metadata

    return metadata.entry_points(group=group)


def added_commands() -> list[EntryPoint]:
    """Commands of other packages, by name."""
    return sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name)


def command_names() -> list[str]:
    """All commands, ours first."""
    return list(dict.fromkeys([*COMMANDS, *(point.name for point in added_commands())]))


def why_not(command: str) -> str:
    """What to say of a command that is not there."""
    if command in ABSENT:
        return f"{command!r} is not there: {ABSENT[command]}"
    if any(map(str.isspace, command)):
        return f'there is no command {command!r}: a prompt goes after `run`, as in edgerun run "Hi"'
    names = command_names()
    near = nearest(command, names)
    hint = f"did you mean {near!r}?" if near else f"there are {', '.join(names)}"
    return f"there is no command {command!r}: {hint}"
