"""Tables on stdout, drawn by rich on a terminal and plain in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from edgerun.cli.visible import visible


def aligned(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of a plain table of mappings that share their keys; numbers to the right."""
    if not rows:
        return []
    columns = []
    for name in rows[0]:
        texts = [name, *(_text(row[name]) for row in rows)]
        right = all(isinstance(row[name], int | float) for row in rows)
        width = max(map(len, texts))
        columns.append([text.rjust(width) if right else text.ljust(width) for text in texts])
    return ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints mappings that share their keys as a table."""
    if not rows:
        return
    names = list(rows[0])
    cells = [[_text(row[name]) for name in names] for row in rows]
    if sys.stdout.isatty():
        _draw(names, cells)
        return
    for line in [names, *cells]:
        print("\t".join(line))


def print_pairs(title: str, pairs: Mapping[str, Any]) -> None:
    """Prints names and values, one a line, under a title."""
    width = max(map(len, pairs), default=0)
    print(title)
    for name, value in pairs.items():
        print(f"  {visible(name):<{width}}  {_text(value) or 'none'}")


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


def _draw(names: list[str], cells: list[list[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*names, box=SIMPLE_HEAD, pad_edge=False)
    for line in cells:
        table.add_row(*map(Text, line))
    Console().print(table)
