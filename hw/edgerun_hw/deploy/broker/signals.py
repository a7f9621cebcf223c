"""Signals: one that would end the helper ends the conversation, and none interrupts going back."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping
from typing import Any

from .protocol import EndOfSession

# A helper that is stopped would keep the lock of the board.
STOPPING = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
# No program can handle these, the helper itself is broken, or the default is to go on; Python
# ignores PIPE and XFSZ, and raises an error in their place.
_OTHERS = {
    *(signal.SIGKILL, signal.SIGSTOP),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP),
    *(signal.SIGABRT, signal.SIGSYS),
    *(signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH),
    *(signal.SIGPIPE, signal.SIGXFSZ),
}
ENDING = tuple(sorted(signal.valid_signals() - _OTHERS - {*STOPPING}))


@contextlib.contextmanager
def ending_session() -> Iterator[None]:
    """Makes signals raise ``EndOfSession``: the first of them, for it begins going back."""
    with _handled({**dict.fromkeys(ENDING, _end), **dict.fromkeys(STOPPING, signal.SIG_IGN)}):
        yield


def ignore() -> None:
    """Ignores signals until the end of ``ending_session``."""
    with contextlib.suppress(EndOfSession):  # of one that comes meanwhile: `_end` ignores the rest
        _set(dict.fromkeys(ENDING, signal.SIG_IGN))


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignores signals while things are put back, in the programs that do it as well."""
    with _handled(dict.fromkeys((*ENDING, *STOPPING), signal.SIG_IGN)):
        yield


@contextlib.contextmanager
def _handled(handlers: Mapping[int, Any]) -> Iterator[None]:
    before = _set(handlers)
    try:
        yield
    finally:
        _set(before)


def _set(handlers: Mapping[int, Any]) -> dict[int, Any]:
    """Sets handlers of signals; returns those before."""
    try:
        return {number: signal.signal(number, handler) for number, handler in handlers.items()}
    except ValueError:  # not in the main thread: then signals do not come here
        return {}


def _end(number: int, frame: Any) -> None:
    # A second one must not end what the first one begins.
    _set(dict.fromkeys(ENDING, signal.SIG_IGN))
    raise EndOfSession
