"""Foreign text on a terminal: what would be obeyed there is shown instead.

Names, messages and replies come from models and files. An escape sequence among them could move the
cursor, rewrite what was printed, or reach the clipboard.
"""

from __future__ import annotations

import os
import shutil
from typing import TextIO

WIDEST_INDENT = 3  # the part of the columns that may stay empty before a line that goes on
NARROWEST = 19  # columns to fill; below, lines end where they end
KEPT = "\n\t"
EMOJI_STYLE = "\ufe0f"  # changes the width of what is before it, on some terminals only
FILLER = "\ufdd0"  # no character of any text
PICTURES = 0x2400  # Unicode has a picture of each ASCII control character from here on
DELETE, PICTURE_OF_DELETE = 0x7F, 0x2421
UPPER_CONTROLS = range(0x80, 0xA0)  # no pictures; some terminals obey them

_TABLE: dict[int, str] = {
    **{code: chr(PICTURES + code) for code in range(32) if chr(code) not in KEPT},
    **{code: f"<{code:02X}>" for code in UPPER_CONTROLS},
    DELETE: chr(PICTURE_OF_DELETE),
}


def visible(text: str) -> str:
    r"""Shows control characters, except newline and tabulator, as symbols.

    Example:
        >>> visible("a\x1b[2Jb")
        'a␛[2Jb'
    """
    return text.translate(_TABLE)


def columns(stream: TextIO) -> int:
    """Columns of the terminal behind a stream."""
    try:
        width = os.get_terminal_size(stream.fileno()).columns
    except OSError:  # not a terminal, or not even a file
        width = 0
    return width or shutil.get_terminal_size().columns


def folded(text: str, stream: TextIO, indent: str = "  ") -> str:
    """A text as a terminal shows it with no word broken; unchanged where there is no terminal.

    Args:
        text: one line.
        stream: where it will be printed.
        indent: begins the lines after the first, as much of it as leaves them room.
    """
    room = columns(stream) - 1 if stream.isatty() else 0
    if room < NARROWEST or sum(map(cells_of, text)) <= room or "\n" in text:
        return text
    import textwrap

    # It counts characters, so a wide one is two while lines are broken.
    spread = "".join(each + FILLER * (cells_of(each) - 1) for each in text)
    return textwrap.fill(
        spread,
        room,
        subsequent_indent=indent[: room // WIDEST_INDENT],
        break_long_words=False,
        break_on_hyphens=False,
    ).replace(FILLER, "")


def cells_of(character: str) -> int:
    """Columns that a character takes: none for a combining mark, two for a wide one."""
    if character.isascii() or character == EMOJI_STYLE:
        return 1
    from wcwidth import wcwidth

    return max(0, wcwidth(character))


def shortened(text: str, room: int) -> str:
    r"""The beginning of a text on one line, to the end of a word where there is more.

    Args:
        text: any.
        room: columns for it.

    Example:
        >>> shortened("a long\nstory", 8)
        'a long…'
    """
    line, used = " ".join(text.split()), 0
    for index, character in enumerate(line):
        used += cells_of(character)
        if used > room:
            words = line[: index + 1].rpartition(" ")[0]
            return f"{words or line[:index]}…"
    return line
