"""How fast this machine reads memory in one linear stream a thread.

Written for the comparison alone, so that it depends on none of the kernels it is held against.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit
from numpy.typing import NDArray

BUFFER_BYTES = 512 << 20  # far more than any cache
PASSES = 3


@njit(nogil=True, fastmath=True)  # type: ignore[untyped-decorator]
def _total(values: NDArray[np.int64]) -> int:
    total = 0
    for value in values:
        total += value
    return total


class BandwidthMeter:
    """Threads that sum a buffer of their own part each."""

    def __init__(self, threads: int) -> None:
        """Takes the memory and touches it."""
        self._buffer = np.ones(BUFFER_BYTES // 8, np.int64)
        self._parts = np.array_split(self._buffer, threads)
        self._pool = ThreadPoolExecutor(threads)
        self._read()

    def measure(self) -> float:
        """Returns bytes a second, the best of a few passes."""
        return BUFFER_BYTES / min(self._read() for _ in range(PASSES))

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()

    def _read(self) -> float:
        start = time.perf_counter()
        totals = list(self._pool.map(_total, self._parts))
        seconds = time.perf_counter() - start
        assert sum(totals) == len(self._buffer)
        return seconds
