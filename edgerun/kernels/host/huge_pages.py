"""Memory on huge pages, where the system has such; elsewhere ordinary memory."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE = 2 << 20


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


def whole_huge_pages(size: int) -> memoryview:
    """Memory for so many bytes or more, of which no huge page is another's, to read files into.

    A direct read of 1.3 MB then is one request to the disk with one piece of memory, not two with
    333: docs/experts.md has what that gains.
    """
    return zeroed_memory(-(-size // HUGE_PAGE) * HUGE_PAGE).data
