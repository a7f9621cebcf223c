"""Native work that may take long, done such that the caller can give it up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

STOP_SECONDS = 1.0  # for work that was told to stop to do so
T = TypeVar("T")


def run_limited(
    work: Callable[[], T], seconds: float | None = None, stop: Callable[[], None] | None = None
) -> T:
    """Does work in a thread of its own and waits for it, so that Ctrl-C is obeyed meanwhile.

    Work that is given up and does not stop goes on until it ends by itself or with the process.

    Args:
        work: what to do.
        seconds: how long to wait; None for as long as it takes.
        stop: asks the work to end, for when the caller gives it up.

    Raises:
        TimeoutError: it takes longer.
    """
    task = _Task(work)
    thread = threading.Thread(target=task.run, name="edgerun-limited", daemon=True)
    try:
        thread.start()
        ended = task.ended.wait(seconds)
    except BaseException:  # Ctrl-C
        _give_up(thread, stop)
        raise
    if not ended:
        _give_up(thread, stop)
        raise TimeoutError(f"it takes longer than {seconds} s")
    if task.error is not None:
        raise task.error
    return task.results[0]


def _give_up(thread: threading.Thread, stop: Callable[[], None] | None) -> None:
    if stop is not None:
        stop()
        if thread.is_alive():
            thread.join(STOP_SECONDS)


class _Task(Generic[T]):
    """Work, and what came of it; a Future's module takes 10 ms to import."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self.ended = threading.Event()
        self.results: list[T] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.results.append(self._work())
        except BaseException as error:
            self.error = error
        finally:
            self.ended.set()
