"""What documents list is what there is: options, variables, commands, forms, folders."""

from __future__ import annotations

import re
from pathlib import Path

from edgerun import env
from edgerun.cli.cache import CONTENTS
from edgerun.cli.conversation.commands import ALIASES, COMMANDS
from edgerun.discovery import entry_names
from edgerun.llm.options import LoadKeywords

DOCS = Path(__file__).parents[2] / "docs"
CALLS = "edgerun.model.chat.calls"


def first_cells(page: str, before: str) -> set[str]:
    """What is written as code in the first cells of the first table behind a line."""
    _, found, rest = f"\n{(DOCS / page).read_text('utf-8')}".partition(f"\n{before}\n")
    rows = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    assert found and rows is not None
    cells = (row.split("|")[1] for row in rows[0].splitlines())
    return {word for cell in cells for word in re.findall("`([^`]+)`", cell)}


def test_options_of_loading_are_all_listed() -> None:
    assert first_cells("python.md", "## Loading") == set(LoadKeywords.__annotations__)


def test_commands_of_chats_are_all_listed() -> None:
    listed = {text.split()[0].rstrip(",") for text in first_cells("chat.md", "## Commands")}
    assert listed == {f"/{name}" for name in (*COMMANDS, *ALIASES)}


def test_forms_of_calls_are_all_listed() -> None:
    forms = {name for room in (CALLS, f"{CALLS}.objects") for name in entry_names(room, "FORM")}
    assert first_cells("python.md", "| form | models | forced |") == forms


def test_what_the_cache_holds_is_listed() -> None:
    listed = {name.rstrip("/") for name in first_cells("files.md", "# What edgerun keeps on disk")}
    assert listed == {place.removesuffix("/*") for place in CONTENTS}


def test_variables_are_all_listed() -> None:
    listed = first_cells("env.md", "# Environment variables")
    known = set(re.findall("``([A-Z_*]+)``", env.__doc__ or ""))
    assert {name.replace("_FPGA_", "_*_") for name in listed} == known
