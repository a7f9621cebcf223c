"""Native work that may take long, done such that the caller can give it up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitedLongError  # another one before 3.11
from typing import TypeVar

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
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=run, name="edgerun-limited", daemon=True)
    thread.start()
    try:
        return _wait(result, seconds)
    except BaseException:
        if stop is not None and not result.done():
            stop()
            thread.join(STOP_SECONDS)
        raise


def _wait(result: Future[T], seconds: float | None) -> T:
    try:
        return result.result(seconds)
    except WaitedLongError as error:
        if result.done():  # what the work itself raised
            raise
        raise TimeoutError(f"it takes longer than {seconds} s") from error
