"""How much of a file the system has in its cache."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np
from numpy.typing import NDArray


def cached_pages(descriptor: int) -> NDArray[np.uint8]:
    """Of each page of a file 1 if it is in the system's cache, else 0, by ``mincore``."""
    size = os.fstat(descriptor).st_size
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as mapping:
        pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
        view = np.frombuffer(mapping, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        address = ctypes.c_void_p(view.ctypes.data)
        if libc.mincore(address, ctypes.c_size_t(size), pages.ctypes.data_as(ctypes.c_void_p)):
            raise OSError(ctypes.get_errno(), "mincore")
        del view
    return pages & 1
