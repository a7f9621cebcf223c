"""What is typed while a reply streams: not shown in the midst of it, but at the next prompt."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from edgerun.env import terminal_erases

INPUT, LOCAL = 0, 3  # flags, in the list that a terminal's attributes are


def has_editor() -> bool:
    """Whether messages are typed in an editor, which draws on stderr."""
    return sys.stdin.isatty() and sys.stderr.isatty() and terminal_erases()


@contextmanager
def typing_waits() -> Iterator[None]:
    """Keeps what is typed meanwhile for whoever reads next; Ctrl-C works and loses none of it.

    The editor takes keys, so keys are what is kept for it, Ctrl-D and Alt-Enter among them. At a
    terminal that can only print, lines are read, which the system edits.
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

    def again(*_: object) -> None:
        """After Ctrl-Z and ``fg``: the shell had the terminal in its own way."""
        with suppress(OSError, termios.error):
            if os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp():
                termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)

    continued = signal.signal(signal.SIGCONT, again)
    try:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
        yield
    finally:
        signal.signal(signal.SIGCONT, continued)
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
