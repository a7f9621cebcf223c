"""Ternary matrices as streams of trits: ``stream.py`` with five weights to a byte."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.trits import DIGITS
from edgerun.kernels.jit.service import native
from edgerun.kernels.layouts.stream import (
    DWORD,
    ROW_UNIT,
    SLAB_ROWS,
    Arena,
    StreamWeight,
    on_all_cores,
)

TILE = 4 * DWORD  # weights of a row in a vector of two-bit codes


@dataclass(frozen=True, slots=True)
class TritWeight:
    """A ternary matrix with a scale a row.

    Attributes:
        codes: uint8 ``[panels, tiles, lanes]`` of trits; N is rounded up to whole panels.
        scales: float32 ``[panels, 1, lanes / 4]``.
        shape: ``(N, K)`` without padding.
        lanes: bytes of a vector.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    shape: tuple[int, int]
    lanes: int

    @property
    def code_tiles(self) -> int:
        """Vectors of a row that is expanded to two-bit codes."""
        return self.padded_k // TILE

    @property
    def padded_k(self) -> int:
        """Activations that kernels read of a row, whether of trits or expanded to codes."""
        return -(-int(self.codes.shape[1]) * DIGITS * DWORD // ROW_UNIT) * ROW_UNIT

    @property
    def nbytes(self) -> int:
        """Bytes that one pass over the matrix reads."""
        return self.codes.nbytes + self.scales.nbytes


class OneMatrix(Arena):
    """Memory that each matrix takes from the one before, for what is needed for a moment."""

    def __init__(self) -> None:
        """Makes it without memory; it grows to the size of the largest matrix."""
        super().__init__(piece=0)
        self._memory: NDArray[np.uint8] = np.zeros(0, np.uint8)

    def zeros(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """A zeroed uint8 array, valid until the next call."""
        size = int(np.prod(shape))
        if size > len(self._memory):
            self._memory = super().zeros((size,))
        array = self._memory[:size].reshape(shape)
        array.fill(0)
        return array


def to_trits(weight: StreamWeight, arena: Arena | None = None) -> TritWeight:
    """Repacks a ternary matrix with a scale a row; the result lies in ``arena`` or by itself.

    ``weight`` is only read; whoever made it for this lets go of it then.
    """
    panels, code_tiles, lanes = weight.codes.shape
    tiles, step = -(-weight.shape[1] // (DIGITS * DWORD)), SLAB_ROWS * DWORD // lanes
    codes = (arena or Arena(piece=0)).zeros((panels, tiles, lanes))
    fields = [weight.codes.ctypes.data, codes.ctypes.data, panels, code_tiles, tiles, step]
    arguments = np.array(fields, np.int64)
    function = native("trit_pack", lanes=lanes)
    chunks = range(-(-panels // step))
    on_all_cores(function, arguments, chunks, weight.codes.nbytes)
    return TritWeight(codes, weight.scales, weight.shape, lanes)
