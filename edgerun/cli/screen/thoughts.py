"""What a model thinks before it answers: dim on a terminal, nowhere else.

A pipe gets answers alone, so that a program reads what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from edgerun.cli.screen.progress import progress_line
from edgerun.env import terminal_erases

if TYPE_CHECKING:
    from edgerun.cli.screen.reply import Write

DIM, PLAIN = "\x1b[2m", "\x1b[22m"
THINKING = "[thinking] "  # where nothing can be dim


class Thoughts(Protocol):
    """Where thoughts of one reply go."""

    def show(self, text: str, tokens: int) -> None:
        """Takes the next of them; ``tokens`` came of the reply by now."""

    def end(self) -> None:
        """An answer begins, or goes on."""

    def stop(self) -> None:
        """What follows is no thought, whatever it is."""


class _Nowhere:
    def show(self, text: str, tokens: int) -> None:
        pass

    def end(self) -> None:
        pass

    def stop(self) -> None:
        pass


class _Counted:
    """A line that is gone when the answer begins, and touched no more: it is the answer's then."""

    def __init__(self) -> None:
        self._line, self._is_shown = progress_line().__enter__(), False
        self._has_answer = False

    def show(self, text: str, tokens: int) -> None:
        if not self._has_answer:
            self._line(f"thinking: {tokens} tokens")
            self._is_shown = True

    def end(self) -> None:
        self.stop()
        self._has_answer = True

    def stop(self) -> None:
        if self._is_shown:
            self._line("")
        self._is_shown = False


class _Shown:
    """Lines before the answer, with an empty one between."""

    def __init__(self, stream: TextIO, write: Write) -> None:
        self._stream, self._write = stream, write
        self._begin, self._end = (DIM, PLAIN) if terminal_erases() else (THINKING, "")
        self._is_begun = self._has_answer = False

    def show(self, text: str, tokens: int) -> None:
        if not self._is_begun:
            self._write("\n\n" if self._has_answer else "")
            self._stream.write(self._begin)
        self._is_begun = True
        self._write(text)

    def end(self) -> None:
        if self._is_begun:
            self.stop()
            self._write("" if self._has_answer else "\n\n")  # messages of an answer part themselves
        self._has_answer = True

    def stop(self) -> None:
        if self._is_begun:
            self._stream.write(self._end)
            self._stream.flush()
        self._is_begun = False


@contextmanager
def thoughts_on(stream: TextIO, write: Write, hidden: bool) -> Iterator[Thoughts]:
    """Where thoughts of a reply go.

    Args:
        stream: where its answer goes.
        write: writes to it.
        hidden: how long the model thinks is shown, and not what.
    """
    is_shown = stream.isatty() and not hidden
    thoughts = _Shown(stream, write) if is_shown else _Counted() if hidden else _Nowhere()
    try:
        yield thoughts
    finally:
        thoughts.stop()


def dim(text: str, stream: TextIO) -> str:
    """A text as a terminal shows it dim; as it is where there is none."""
    return f"{DIM}{text}{PLAIN}" if stream.isatty() and terminal_erases() else text
