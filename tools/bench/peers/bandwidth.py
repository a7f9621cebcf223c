"""How fast this machine reads memory, written without the kernels that are held against it.

A core that follows one linear stream does not reach what the memory can do: the prefetchers stop
at page borders and too few lines are on their way. So several streams a thread are read at once,
and the fastest way of reading counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit
from numpy.typing import NDArray

BUFFER_BYTES = 768 << 20  # far more than any cache; both chunk sizes divide a thread's share
CHUNK_WORDS = 3 << 15  # 768 KiB, read as so many streams side by side
PASSES = 6


@njit(nogil=True, fastmath=True)
def _one_stream(values: NDArray[np.int64]) -> int:
    total = 0
    for value in values:
        total += value
    return total


@njit(nogil=True, fastmath=True)
def _two_streams(values: NDArray[np.int64]) -> int:
    total, size = 0, CHUNK_WORDS // 2
    for start in range(0, len(values), CHUNK_WORDS):
        a = values[start : start + size]
        b = values[start + size : start + 2 * size]
        for i in range(size):
            total += a[i] + b[i]
    return total


@njit(nogil=True, fastmath=True)
def _three_streams(values: NDArray[np.int64]) -> int:
    total, size = 0, CHUNK_WORDS // 3
    for start in range(0, len(values), CHUNK_WORDS):
        a = values[start : start + size]
        b = values[start + size : start + 2 * size]
        c = values[start + 2 * size : start + 3 * size]
        for i in range(size):
            total += a[i] + b[i] + c[i]
    return total


Reader = Callable[[NDArray[np.int64]], int]
READERS: tuple[Reader, ...] = (_one_stream, _two_streams, _three_streams)


class BandwidthMeter:
    """Threads that sum a part of a buffer each."""

    def __init__(self, threads: int, buffer_bytes: int = BUFFER_BYTES) -> None:
        """Takes the memory, touches it and compiles the readers."""
        chunks = max(threads, buffer_bytes // (8 * CHUNK_WORDS))
        self._buffer = np.ones(chunks * CHUNK_WORDS, np.int64)
        ends = [CHUNK_WORDS * (chunks * part // threads) for part in range(threads + 1)]
        self._parts = [self._buffer[a:b] for a, b in zip(ends, ends[1:], strict=False)]
        self._pool = ThreadPoolExecutor(threads)
        self.measure(passes=1)

    def measure(self, passes: int = PASSES) -> float:
        """Returns bytes a second, the best pass of the best way of reading."""
        fastest = min(self._read(reader) for reader in READERS for _ in range(passes))
        return self._buffer.nbytes / fastest

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()

    def _read(self, reader: Reader) -> float:
        start = time.perf_counter()
        totals = list(self._pool.map(reader, self._parts))
        seconds = time.perf_counter() - start
        assert sum(totals) == len(self._buffer)
        return seconds
