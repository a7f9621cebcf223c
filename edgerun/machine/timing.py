"""How long something takes: the best of several runs, or their median."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

SECONDS = 0.25  # for each figure, as a rule
MIN_RUNS = 3


def best_time(
    run: Callable[[], object],
    seconds: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """The shortest of several runs in seconds, of as many as take so long together."""
    return min(_times(run, SECONDS if seconds is None else seconds, clock))


def median_time(run: Callable[[], object]) -> float:
    """The median of several runs in seconds."""
    return statistics.median(_times(run, SECONDS))


def _times(
    run: Callable[[], object], least: float, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    seconds: list[float] = []
    end = clock() + least
    while len(seconds) < MIN_RUNS or clock() < end:
        start = clock()
        run()
        seconds.append(clock() - start)
    return seconds
