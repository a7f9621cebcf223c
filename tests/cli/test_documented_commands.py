"""Commands and options that the documentation names exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from edgerun.cli.commands import application, command_names

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *ROOT.glob("models/*/README.md"),
]
# In a block or a line of code, up to what the shell would take for another command.
COMMAND = re.compile(r"(?:^|[`\s(/])edgerun((?: +(?:\\\n *)?[^\s`|;&><)#]+)+)")
OPTION = re.compile(r"--[a-z][a-z-]*[a-z]")
LINE_OR_BLOCK = re.compile(r"```.*?```|`[^`]+`", re.DOTALL)


@cache
def options_of(words: tuple[str, ...]) -> frozenset[str] | None:
    """Options of a command, or of a command in a group; None if there is no such command."""
    if words[0] not in command_names():
        return None
    command: Any = get_command(application([words[0]])).commands[words[0]]
    for word in words[1:]:
        command = command.commands.get(word)
    if command is None:
        return None
    names = (name for entry in command.params for name in (*entry.opts, *entry.secondary_opts))
    return frozenset({*names, "--help"})


def named(text: str) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Commands of a page, with the options that are named behind them."""
    for code in LINE_OR_BLOCK.findall(text):
        for match in COMMAND.finditer(code):
            words = match[1].replace("\\\n", " ").split()
            if not re.fullmatch(r"[a-z]+", words[0]):
                continue
            nested = words[0] == "fpga" and words[1:2] and words[1].isalpha()
            command, options = tuple(words[: 2 if nested else 1]), OPTION.findall(match[1])
            if options or words[0] in command_names():  # else a package's name among others
                yield command, options


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_of_a_page_exist(page: Path) -> None:
    unknown = []
    for command, options in named(page.read_text("utf-8")):
        existing = options_of(command)
        if existing is None:
            unknown.append(" ".join(command))
        else:
            unknown += [f"{' '.join(command)} {name}" for name in options if name not in existing]
    assert not unknown


def test_a_command_that_is_named_is_looked_at() -> None:
    block = "```sh\nedgerun fpga bench \\\n  --clock 3 | edgerun nothing --x-y\n```"
    text = f"`edgerun run --no-such X`, and `pip install edgerun tomli`:\n{block}"
    assert list(named(text)) == [
        (("run",), ["--no-such"]),
        (("fpga", "bench"), ["--clock"]),
        (("nothing",), ["--x-y"]),
    ]
    assert options_of(("nothing",)) is None
    assert "--no-such" not in (options_of(("run",)) or ())
    assert "--clock" in (options_of(("fpga", "bench")) or ())
