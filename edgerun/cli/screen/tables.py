"""Tables on stdout: in columns on a terminal, in which no word is broken; plain in a pipe."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from edgerun.cli.screen.visible import NARROWEST, columns, folded, visible

FIGURE = re.compile(r"([\d.,]+( ?[a-zA-Z]{1,3}|%)?)?")


def aligned(rows: Sequence[Mapping[str, Any]], room: int = 0) -> list[str]:
    """Lines of a plain table of mappings that share their keys; numbers to the right.

    Args:
        rows: all with the same keys.
        room: columns that lines may take; the last cells go on in lines of their own, between
            words. 0 is as many as there are.
    """
    if not rows:
        return []
    table = []
    for name in rows[0]:
        texts = [name, *(_text(row[name]) for row in rows)]
        right = all(isinstance(row[name], int | float) or _is_figure(row[name]) for row in rows)
        width = max(map(len, texts))
        table.append([text.rjust(width) if right else text.ljust(width) for text in texts])
    return [line for cells in zip(*table, strict=True) for line in _filled(cells, room)]


def without_empty_columns(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same rows without keys for which no row has a text."""
    names = [name for name in (rows[0] if rows else ()) if any(_text(row[name]) for row in rows)]
    return [{name: row[name] for name in names} for row in rows]


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints mappings that share their keys as a table, with tabulators between cells in a pipe."""
    if sys.stdout.isatty():
        for line in aligned(rows, columns(sys.stdout) - 1):
            print(line)
    elif rows:
        print("\t".join(rows[0]))
        for row in rows:
            print("\t".join(map(_text, row.values())))


def print_pairs(title: str, pairs: Mapping[str, Any]) -> None:
    """Prints names and values, one a line, under a title."""
    width = max(map(len, pairs), default=0)
    print(title)
    for name, value in pairs.items():
        line = f"  {visible(name):<{width}}  {_text(value) or 'none'}"
        print(folded(line, sys.stdout, " " * (width + 4)))


def size(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def _text(value: Any) -> str:
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(_text, value))
    return "" if value is None else visible(str(value))


def _is_figure(value: Any) -> bool:
    """Whether a text is a number with a unit, as ``12 ms`` and ``7%`` are, or empty."""
    return isinstance(value, str) and FIGURE.fullmatch(value) is not None


def _filled(cells: Sequence[str], room: int) -> list[str]:
    """A row as one line, or several in whose last column there is a part of the last cell each."""
    line = "  ".join(cells).rstrip()
    margin = len(line) - len(cells[-1].rstrip())
    if not 0 < room < len(line) or room - margin < NARROWEST:
        return [line]
    import textwrap

    return textwrap.wrap(
        line,
        room,
        subsequent_indent=" " * margin,
        drop_whitespace=True,
        break_long_words=False,
        break_on_hyphens=False,
    )
