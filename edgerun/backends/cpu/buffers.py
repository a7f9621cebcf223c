"""Buffers of a program: one array per live value, reused once nothing reads the value any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A multiple of every kernel's tile, so that a row can be read to the end of its last tile.
ROW_MULTIPLE = 256
ALIGNMENT = 64
# Elements of rows that share few sets of the first cache: kernels read several rows at a time, and
# write a few outputs of one row after the other.
CROWDED = 1024
CROWDED_TYPES = ("int8", "float32")


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory for ``[rows, width]``; elements from ``width`` to ``stride`` stay zero.

    Attributes:
        key: identifies the memory; two values may share it one after the other.
        array: ``[max_rows, stride]``.
        width: elements in use a row.
    """

    key: str
    array: NDArray[Any]
    width: int

    @property
    def stride(self) -> int:
        """Elements from one row to the next."""
        return int(self.array.shape[1])


class BufferPool:
    """Hands out buffers and takes them back."""

    def __init__(self, max_rows: int, name: str = "buffer") -> None:
        """Makes an empty pool for up to ``max_rows`` rows; no two of a program have one name."""
        self._max_rows, self._name = max_rows, name
        self._free: dict[tuple[int, int, str], list[Buffer]] = {}  # by width, stride and type
        self.all: list[Buffer] = []

    def take(self, width: int, dtype: str = "float32", *, exact: bool = False) -> Buffer:
        """Returns a free buffer of this width; ``exact`` asks for rows without padding."""
        stride = width if exact else -(-width // ROW_MULTIPLE) * ROW_MULTIPLE
        if dtype in CROWDED_TYPES and not exact and stride % CROWDED == 0:
            stride += ALIGNMENT // np.dtype(dtype).itemsize
        if waiting := self._free.get((width, stride, dtype)):
            return waiting.pop()
        array = aligned_zeros((self._max_rows, stride), dtype)
        buffer = Buffer(f"{self._name}{len(self.all)}", array, width)
        self.all.append(buffer)
        return buffer

    def give(self, buffer: Buffer) -> None:
        """Takes a buffer back for reuse."""
        key = buffer.width, buffer.stride, str(buffer.array.dtype)
        self._free.setdefault(key, []).append(buffer)

    def take_rows(self, rows: int, width: int, dtype: str) -> Buffer:
        """Returns a free buffer with room for so many rows without padding, however many that is.

        What lies where is up to those who use it: its own rows are longer.
        """
        return self.take(rows * width // self._max_rows + 1, dtype, exact=True)


def dense_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Of a float32 matrix ``[N, K]`` in memory: K is rounded up."""
    return shape[0], -(-shape[1] // ROW_MULTIPLE) * ROW_MULTIPLE


def aligned_zeros(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """A zeroed array that starts on a cache line; the system commits its pages on first use."""
    item = np.dtype(dtype).itemsize
    size = int(np.prod(shape)) * item
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)
