"""Which source files a module needs: a search by name, enough for one module a file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from edgerun.errors import InputError
from edgerun_hw.build.sources import rtl_files

DEFINED = re.compile(r"^\s*(?:module|package)\s+(?:automatic\s+)?(\w+)", re.MULTILINE)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
WORD = re.compile(r"\b\w+\b")


def needed_files(top: str, files: Iterable[Path] | None = None) -> list[Path]:
    """Returns the sources that ``top`` is made of, in the order compilers need.

    Args:
        top: name of a module.
        files: where to look; all of ``hw/rtl`` if left out.

    Raises:
        InputError: no file defines ``top``.
    """
    order = list(rtl_files() if files is None else files)
    texts = {file: COMMENT.sub("", file.read_text("utf-8")) for file in order}
    home = {name: file for file, text in texts.items() for name in DEFINED.findall(text)}
    if top not in home:
        raise InputError(f"no source file defines the module {top!r}: there are {', '.join(home)}")
    pending, needed = [top], set()
    while pending:
        file = home[pending.pop()]
        if file not in needed:
            needed.add(file)
            pending += set(WORD.findall(texts[file])) & home.keys()
    return [file for file in order if file in needed]
