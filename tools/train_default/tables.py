"""Readers of the text files beside the scripts: tables are data, not code."""

from __future__ import annotations

from pathlib import Path


def read_rows(name: str) -> list[list[str]]:
    """Blocks of lines between blank lines; lines that begin with `#` are comments."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [block.split("\n") for block in "\n".join(lines).strip().split("\n\n")]


WORDS = {name.rstrip(":"): " ".join(lines).split() for name, *lines in read_rows("words.txt")}
NAMES = WORDS["names"]
