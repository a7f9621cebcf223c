"""Memory that states may take: asked for piece by piece, so that there is always some left."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

SPARE_BYTES = 128 << 20  # stays free for everything else
UNLIMITED = 1 << 62
LARGE_BYTES = 2 << 20  # of a huge page: pieces of no less are put on such
Zeroed: TypeAlias = Callable[[int], NDArray[np.uint8]]


class Memory:
    """How much memory there really is, looked at when a page is to be taken and rarely else.

    Address space is reserved for all pages at once; the system commits a page when it is first
    written. What was granted and not yet written is not seen by a look, so a little stays free.
    """

    def __init__(
        self,
        available: Callable[[], int] = lambda: UNLIMITED,
        spare_bytes: int = SPARE_BYTES,
        on_huge_pages: Zeroed | None = None,
    ) -> None:
        """Takes a function that says how many bytes are free now.

        ``on_huge_pages`` makes bytes, zeros, that lie on huge pages where there are such.
        """
        self._available, self._on_huge_pages = available, on_huge_pages
        self._spare = spare_bytes
        self._left = 0

    def look(self) -> int:
        """Bytes that may be taken, as of now."""
        self._left = max(0, self._available() - self._spare)
        return self._left

    def left(self, enough: int) -> int:
        """Bytes that may be taken: as of the last look, if that was ``enough``."""
        return self._left if self._left >= enough else self.look()

    def take(self, nbytes: int) -> bool:
        """Takes memory; False if there is not so much."""
        if self.look() < nbytes:
            return False
        self._left -= nbytes
        return True

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike, piece: int) -> NDArray[Any]:
        """Zeros that are committed on first use, some pieces of so many rows after the other."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if self._on_huge_pages is None or size // max(1, shape[0]) * piece < LARGE_BYTES:
            return zeros_at_page(shape, dtype)
        return self._on_huge_pages(size)[:size].view(dtype).reshape(shape)


def zeros_at_page(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Zeros that begin with a page of the system; committed on first use.

    NumPy's own large arrays begin 16 bytes into one: of loads as wide as a cache line each would
    take two lines.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + mmap.PAGESIZE, np.uint8)
    start = -raw.ctypes.data % mmap.PAGESIZE
    return raw[start : start + size].view(dtype).reshape(shape)
