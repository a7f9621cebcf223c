"""Readers of the text files beside the scripts: tables are data, not code."""

from __future__ import annotations

from pathlib import Path


def read_rows(name: str) -> list[list[str]]:
    """Blocks of lines between blank lines; lines that begin with `#` are comments."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [block.split("\n") for block in "\n".join(lines).strip().split("\n\n")]


def read_words(name: str) -> dict[str, list[str]]:
    """Blocks of a title with a colon and lines of words."""
    return {title.rstrip(":"): " ".join(lines).split() for title, *lines in read_rows(name)}


WORDS = read_words("words.txt")
NAMES = [*WORDS["girls"], *WORDS["boys"]]
