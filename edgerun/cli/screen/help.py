"""Pages of ``--help``: plain text that fits the terminal, whatever version of typer reads options.

Only what click has always had is used of a command: its parameters, their names and their help.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable
from functools import partial
from typing import Any

from edgerun.cli.screen.visible import columns

WIDEST, NARROWEST = 100, 40
LONGEST_NAME = 26  # columns, a third of a narrow page; the help of longer ones is on the next line
METAVARS = {"int": "N", "integer": "N", "float": "X", "path": "PATH"}  # TEXT for all others


def use_plain_pages(command: Any) -> None:
    """Lets a click command, and those that it holds, print these pages."""
    command.get_help = partial(page, command)
    for member in getattr(command, "commands", {}).values():
        use_plain_pages(member)


def page(command: Any, context: Any) -> str:
    """The help of a command."""
    width = min(WIDEST, max(NARROWEST, columns(sys.stdout) - 1))
    parameters = [entry for entry in command.get_params(context) if not _is_hidden(entry)]
    arguments = [entry for entry in parameters if entry.param_type_name == "argument"]
    options = [entry for entry in parameters if entry.param_type_name == "option"]
    members = getattr(command, "commands", {})
    pieces = [
        "[OPTIONS]",
        *map(_usage, arguments),
        *(["COMMAND"] if members else []),
    ]
    usage = f"Usage: {context.command_path} {' '.join(pieces)}"
    parts = [usage, *(textwrap.fill(text, width) for text in (command.help or "").split("\n\n"))]
    parts += _section("Arguments", [(_name(entry), _help(entry)) for entry in arguments], width)
    rows = [(name, _summary(member)) for name, member in members.items() if not member.hidden]
    parts += _section("Commands", rows, width)
    parts += _section(
        "Options", [(_names(entry, context), _help(entry)) for entry in options], width
    )
    if command.epilog:
        parts.append(command.epilog)
    return "\n\n".join(parts)


def _section(title: str, rows: Iterable[tuple[str, str]], width: int) -> list[str]:
    """A titled table of names and what they mean; nothing if it is empty."""
    rows = list(rows)
    if not rows:
        return []
    longest = min(LONGEST_NAME, width // 3)
    margin = 4 + max([len(name) for name, _ in rows if len(name) <= longest], default=0)
    lines: list[str] = []
    for name, text in rows:
        first = f"  {name}".ljust(margin)
        if len(name) + 4 > margin:  # two columns before it, and two behind
            lines.append(first.rstrip())
            first = " " * margin
        filled = textwrap.fill(
            text,
            width,
            initial_indent=first,
            subsequent_indent=" " * margin,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines.append(filled or first.rstrip())
    return ["\n".join([f"{title}:", *lines])]


def _summary(command: Any) -> str:
    """The first paragraph of a command's help, which lists show."""
    return (command.help or "").partition("\n\n")[0]


def _is_hidden(parameter: Any) -> bool:
    return bool(getattr(parameter, "hidden", False))


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name).upper()


def _usage(argument: Any) -> str:
    return _name(argument) if argument.required else f"[{_name(argument)}]"


def _names(option: Any, context: Any) -> str:
    """All spellings, short ones first, and what stands for the value."""
    names = sorted([*option.opts, *option.secondary_opts], key=lambda name: name.startswith("--"))
    value = (
        "" if option.is_flag or getattr(option, "count", False) else f" {_value(option, context)}"
    )
    return ", ".join(names) + value


def _value(option: Any, context: Any) -> str:
    """What stands for the value of an option; versions of typer keep its type in two places."""
    if option.metavar:
        return str(option.metavar)
    display_type = getattr(option, "display_type", None)
    kind = display_type(context).strip("<>") if display_type else getattr(option.type, "name", "")
    return METAVARS.get(kind.removesuffix(" range"), "TEXT")


def _help(parameter: Any) -> str:
    notes = []
    if isinstance(parameter.default, str | int | float) and not _is_flag(parameter):
        notes.append(f"default: {parameter.default}")
    if parameter.required and parameter.param_type_name == "option":
        notes.append("required")
    text = parameter.help or ""
    return f"{text} [{'; '.join(notes)}]" if notes else text


def _is_flag(parameter: Any) -> bool:
    return bool(getattr(parameter, "is_flag", False))
