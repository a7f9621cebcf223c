"""What is typed while a reply streams: not shown in the midst of it, but at the next prompt."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from edgerun.env import terminal_erases

INPUT, LOCAL = 0, 3  # flags, in the list that a terminal's attributes are
MARKED, UNMARKED = b"\x1b[?2004h", b"\x1b[?2004l"  # the terminal says where a paste begins and ends


def has_editor() -> bool:
    """Whether messages are typed in an editor, which draws on stderr."""
    return sys.stdin.isatty() and sys.stderr.isatty() and terminal_erases()


@contextmanager
def pastes_unmarked_at_last() -> Iterator[None]:
    """Whatever ends what is done meanwhile, the terminal marks pastes no more.

    The editor has them marked while it reads, and ``typing_waits`` has them marked again: the
    lines of one without marks would be sent one by one, and those with a slash obeyed.
    """
    try:
        yield
    finally:
        _tell_terminal(UNMARKED)


def _tell_terminal(sequence: bytes) -> None:
    """Sends what a terminal obeys to one with an editor, past buffers: a signal may have come."""
    if has_editor():
        with suppress(OSError, ValueError):
            os.write(sys.stderr.fileno(), sequence)


@contextmanager
def typing_waits() -> Iterator[None]:
    """Keeps what is typed meanwhile for whoever reads next; Ctrl-C works and loses none of it.

    The editor takes keys, so keys are what is kept for it, Ctrl-D and Alt-Enter among them. At a
    terminal that can only print, lines are read, which the system edits. What is pasted stays
    marked as that afterwards; see ``pastes_unmarked_at_last``.
    """
    try:
        import termios

        before = termios.tcgetattr(sys.stdin)
    except (ImportError, OSError, ValueError):  # Windows, which shows only what is read
        yield
        return
    except termios.error:  # not a terminal
        yield
        return
    quiet = list(before)
    quiet[LOCAL] = quiet[LOCAL] & ~termios.ECHO | termios.NOFLSH
    if has_editor():
        quiet[LOCAL] &= ~termios.ICANON
        quiet[INPUT] &= ~termios.ICRNL

    def again(number: int, _: object) -> None:
        """After Ctrl-Z and ``fg``: the shell had the terminal in its own way."""
        with suppress(OSError, termios.error):
            if os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp():
                termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
                _tell_terminal(MARKED)

    def give_back() -> None:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(sys.stdin, termios.TCSANOW, before)

    def end(number: int, _: object) -> None:
        """Who ends this program finds the terminal as it was."""
        give_back()
        _tell_terminal(UNMARKED)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    with _handled({signal.SIGCONT: again, signal.SIGTERM: end, signal.SIGHUP: end}):
        try:
            termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
            _tell_terminal(MARKED)
            yield
        finally:
            give_back()


@contextmanager
def _handled(handlers: Mapping[int, Callable[[int, object], None]]) -> Iterator[None]:
    """Handles signals meanwhile, but for those that are ignored, as nohup has it."""
    others = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        if others[number] is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, other in others.items():
            signal.signal(number, other)
