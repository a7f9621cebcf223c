"""Memory on huge pages, where the system has such; elsewhere ordinary memory."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE = 2 << 20
TURNS_BYTES = 16 << 20  # of a few readers together more than caches hold


def zeroed_memory(size: int) -> NDArray[np.uint8]:
    """Zeroed memory that starts on a huge page, if there are such; committed on first use."""
    whole = size + HUGE_PAGE
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        raw = np.zeros(whole, np.uint8)
    else:
        # Private: shared mappings, Python's default, are files to Linux and get no huge pages.
        area = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):
            area.madvise(mmap.MADV_HUGEPAGE)
        raw = np.frombuffer(area, np.uint8)
    start = -raw.ctypes.data % HUGE_PAGE
    return raw[start : start + size]


class ReadBuffer:
    """Memory to read pieces of files into, one after the other.

    It is whole huge pages: a direct read of 1.3 MB then is one request to the disk with one or two
    pieces of memory, not two with 333. And it is used in turns: a virtual disk is a processor of
    the host that writes, and it writes far more slowly to what our caches hold, as they do what
    was looked at last. docs/experts.md has what both gain.
    """

    def __init__(self) -> None:
        """Makes it without memory; it grows to ``TURNS_BYTES``, or the largest piece."""
        self._memory, self._start = memoryview(b""), 0

    def commit(self) -> None:
        """Has its memory now, before what is read into it is timed."""
        np.frombuffer(self.take(TURNS_BYTES), np.uint8)[:: mmap.PAGESIZE] = 0

    def take(self, size: int) -> memoryview:
        """Memory of so many bytes that begins at a page; the next call may give it away."""
        if size > len(self._memory):
            whole = -(-max(size, TURNS_BYTES) // HUGE_PAGE) * HUGE_PAGE
            self._memory, self._start = zeroed_memory(whole).data, 0
        if self._start + size > len(self._memory):
            self._start = 0
        start = self._start
        self._start += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        return self._memory[start : start + size]
