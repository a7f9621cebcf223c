"""Writes what is derived from the sampling options: their types, and the table in docs/python.md.

    python -m tools.ci.sampling_options

Run it in the repository's root after a change of a processor or of ``SamplingParams``.
"""

from __future__ import annotations

from pathlib import Path

from edgerun.engine.chooser.option import Option
from edgerun.engine.chooser.params import all_options

ROOT = Path(__file__).parents[2]
KEYWORDS = Path("edgerun/engine/chooser/keywords.py")
PAGE = Path("docs/python.md")
BEGIN = "<!-- written by tools/ci/sampling_options.py -->\n"
END = "<!-- end -->\n"
MODULE = '''\
"""``SamplingParams`` as keyword arguments, for type checkers.

Written by ``python -m tools.ci.sampling_options``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from edgerun.engine.chooser.processor import Processor


class SamplingKeywords(TypedDict, total=False):
    """What may be asked of a reply; see docs/python.md."""

'''


def keywords() -> str:
    """The module of the types."""
    lines = [f"    {entry.name}: {entry.kind.accepts}\n" for entry in all_options()]
    return "".join([MODULE, *lines, "    processors: Iterable[Processor]\n"])


def table() -> str:
    """A row for every option, as Markdown."""
    rows = ["| option | default | | values |\n", "|---|---|---|---|\n"]
    return "".join([*rows, *map(_row, all_options())])


def page(text: str) -> str:
    """A page of the documentation with the table in its place."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


def _row(entry: Option) -> str:
    default, help_ = repr(entry.default), entry.help.replace("|", "\\|")
    return f"| `{entry.name}` | `{default}` | {help_} | {entry.kind.values} |\n"


def main() -> None:
    """Writes both files."""
    (ROOT / KEYWORDS).write_text(keywords(), "utf-8")
    (ROOT / PAGE).write_text(page((ROOT / PAGE).read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
