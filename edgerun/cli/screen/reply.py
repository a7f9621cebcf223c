"""Where replies go: as they are into a pipe, wrapped between words on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from edgerun.cli.screen.visible import EMOJI_STYLE, NARROWEST, cells_of, columns, visible
from edgerun.env import terminal_erases

TAB = 8
JOINER = "\u200d"  # changes the width of what is beside it, on some terminals only

if TYPE_CHECKING:
    from edgerun.llm.replies.stream import TextStream

Write = Callable[[str], None]


def show_reply(stream: TextStream, *, hides_thinking: bool = False) -> None:
    """Shows a reply on stdout as it comes, to its end or until it is interrupted.

    Args:
        stream: of the reply; it is closed.
        hides_thinking: how long the model thinks is shown, and not what.

    Raises:
        EdgerunError: the reply failed.
    """
    from edgerun.cli.screen.reading import reading_line
    from edgerun.cli.screen.thoughts import thoughts_on

    write, stats = reply_writer(), stream.completion.stats
    with (
        stream,
        thoughts_on(sys.stdout, write, hides_thinking) as thoughts,
        reading_line(stats) as has_read,
    ):
        for text, thinking in stream.parts():
            has_read()
            if thinking:
                thoughts.show(thinking, len(stream.completion.ids))
            if text:
                thoughts.end()
                write(text)


def reply_writer() -> Write:
    """Returns what writes pieces of a reply to stdout."""
    if not sys.stdout.isatty():
        return _through(sys.stdout)
    width = _width()
    if width < NARROWEST or not terminal_erases():
        return lambda piece: _through(sys.stdout)(visible(piece))
    lines = WrappedLines(_through(sys.stdout), width)

    def write(piece: str) -> None:
        lines.width = max(NARROWEST, _width())  # a window may change its size meanwhile
        lines.write(piece)

    return write


def _width() -> int:
    """Columns to fill; one less than there are.

    A terminal whose last column is full disagrees with others about where its cursor is.
    """
    return columns(sys.stdout) - 1


def _through(stream: TextIO) -> Write:
    def write(piece: str) -> None:
        stream.write(piece)
        stream.flush()

    return write


class WrappedLines:
    """Breaks lines between words, although the end of a word is not known when it begins.

    A word that turns out too long for its line is erased and begun again on the next one. Words
    longer than a line, and scripts of wide characters, which have no spaces, break anywhere.

    Attributes:
        width: columns to fill.
    """

    def __init__(self, write: Write, width: int) -> None:
        """Starts at the left margin.

        Args:
            write: takes what goes to the terminal.
            width: columns to fill.
        """
        self._write, self.width = write, width
        self._column = 0
        self._word, self._word_cells = "", 0

    def write(self, piece: str) -> None:
        """Writes a piece of text, control characters made visible."""
        self._write("".join(map(self._placed, visible(piece))))

    def _placed(self, character: str) -> str:
        """What to send to the terminal for a character."""
        if character in " \t\n":
            return self._space(character)
        cells = cells_of(character)
        before = ""
        if self._column + cells > self.width:
            before = self._next_line()
        self._column += cells
        if cells > 1 or character in (JOINER, EMOJI_STYLE):
            # Lines may break here, and how much would have to be erased is not known.
            self._word, self._word_cells = "", 0
        else:
            self._word += character
            self._word_cells += cells
        return before + character

    def _space(self, character: str) -> str:
        self._word, self._word_cells = "", 0
        cells = TAB - self._column % TAB if character == "\t" else 1
        self._column += cells
        if character == "\n" or self._column > self.width:
            self._column = 0
            return "\n"
        return " " * cells

    def _next_line(self) -> str:
        """Ends the line, taking the unfinished word along if it does not fill the line."""
        word, cells = self._word, self._word_cells
        if cells == self._column:
            word, cells = "", 0
        self._word, self._word_cells, self._column = word, cells, cells
        erased = f"\x1b[{cells}D\x1b[K" if cells else ""
        return f"{erased}\n{word}"
