"""A lock that threads take in turn, and that Ctrl-C never leaves taken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from edgerun.forks import each_in_forked_child

P = ParamSpec("P")
T = TypeVar("T")


class FairLock:
    """Lets one thread at a time call functions; whoever waits comes before whoever comes back.

    A thread waits at a gate until it is the next one. The thread that was inside has to go to the
    gate again, so it cannot be inside twice while another waits, as with a plain lock it would be
    most of the time. A function that runs inside may use the lock again.

    Ctrl-C is raised in the main thread between any two calls. So the lock is taken and released
    in one frame, by nothing but C functions, and the first call on the way out is the release; a
    context manager written in Python could be interrupted before its first line.

    A handler of a signal runs in the middle of whatever the main thread does, its waiting here
    among it, and may use the lock as well: it waits at the place that its thread has. So both
    locks know whose they are, and who comes in says so while the gate is still its own.
    """

    def __init__(self) -> None:
        self._reset()
        _LOCKS.add(self)

    def _reset(self) -> None:
        """Begins anew, as a forked child has to: threads that held the locks do not exist there."""
        self._owner: int | None = None
        self._gate = threading.RLock()
        self._inside = threading.RLock()

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function while no other thread is inside, and returns what it returns."""
        thread = threading.get_ident()
        if self._owner == thread:
            return function(*args, **kwargs)
        try:
            with self._gate:
                self._inside.acquire()
                self._owner = thread
            return function(*args, **kwargs)
        finally:
            if self._owner == thread:
                self._owner = None
            try:  # noqa: SIM105, suppress is written in Python
                self._inside.release()
            except RuntimeError:  # not ours: interrupted while waiting
                pass


_LOCKS = each_in_forked_child(FairLock._reset)
