"""The kernels of a whole expert, in order, on rows in the GPU's memory."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numba import cuda
from numpy.typing import NDArray

from edgerun.offload.cuda.arithmetic import SIMULATED
from edgerun.offload.cuda.forms import THREADS, TILE
from edgerun.offload.cuda.kernels import make_gated, make_product
from edgerun.offload.cuda.rounding import quantise
from edgerun.offload.cuda.slots import Matrix
from edgerun.offload.sharing.device import (
    ALL,
    F32,
    FIRST,
    SECOND,
    WHOLE,
    DeviceSizes,
    Product,
)

# Numba's advice at every launch for few rows, of which there are no more.
warnings.filterwarnings("ignore", message=".*Grid size .* GPU under-utilization")
# Threads that share a row of a panel, and that round a row; the simulator starts one of the
# system's for each.
GROUPS, ROUNDING = (1, 1) if SIMULATED else (8, THREADS)


class _Rounded:
    """Memory for rows rounded to int8, as ``rounding.quantise`` writes them."""

    def __init__(self, rows: int, matrix: Matrix) -> None:
        self.codes = cuda.device_array((rows, matrix.blocks * matrix.block // 4), np.int32)
        self.scales = cuda.device_array((rows, matrix.blocks), np.float32)
        self.sums = cuda.device_array((rows, matrix.blocks), np.int32)

    @property
    def arrays(self) -> tuple[Any, Any, Any]:
        """Codes, scales and sums of codes."""
        return self.codes, self.scales, self.sums


class ExpertPrograms:
    """Multiplies rows by the experts that lie in slots of the GPU's memory.

    Attributes:
        sizes: of slots and rows.
        memory: all slots, uint8.
    """

    def __init__(
        self, sizes: DeviceSizes, matrices: Sequence[Matrix], activation: str, groups: int = GROUPS
    ) -> None:
        """Takes memory of the current GPU; kernels are compiled when they are first called.

        Args:
            sizes: of slots and rows.
            matrices: gate, up and down.
            activation: of the gate.
            groups: threads that share a row of a panel.
        """
        self._gate, self._up, self._down = matrices
        self.sizes, rows, self._groups = sizes, sizes.rows, groups
        self.memory = cuda.device_array(sizes.slots * sizes.slot_bytes, np.uint8)
        views = self.memory.view(np.int32), self.memory.view(np.float32)
        self._slots = *views, sizes.slot_bytes // 4
        self._x = cuda.device_array((rows, sizes.width), np.float32)
        self._inner = cuda.device_array((rows, sizes.inner), np.float32)
        self._out = cuda.device_array((rows, sizes.width), np.float32)
        self._rounded = [_Rounded(rows, matrix) for matrix in (self._gate, self._down)]
        self._tiles = cuda.device_array((rows, 3), np.int32)
        self._tiles_here = cuda.pinned_array((rows, 3), np.int32)
        self._matrices = [cuda.to_device(matrix.words) for matrix in matrices]
        self._quantise = cuda.jit(quantise)
        self._gated = cuda.jit(make_gated(self._gate.form, activation))
        self._product = cuda.jit(make_product(self._down.form))

    def run(
        self, x: F32, slots: Sequence[int], out: F32, stream: Any, product: Product = ALL
    ) -> None:
        """Queues the products of some rows; ``x`` and ``out`` must be pinned and stay.

        Args:
            x: float32 ``[rows, width]``, or what lies between the products.
            slots: of each row's expert; rows of the same follow one another.
            out: gets what comes out, when the stream is there.
            stream: that it is queued in.
            product: what of the expert.
        """
        rows, tiles = len(slots), tiles_of(slots)
        self._tiles_here[: len(tiles)] = tiles
        self._tiles[: len(tiles)].copy_to_device(self._tiles_here[: len(tiles)], stream=stream)
        source, target = self._x, self._out
        if product.op == SECOND:
            source = self._inner
        source[:rows].copy_to_device(x, stream=stream)
        if product.op != SECOND:
            panels = self._gate.panels if product.op == WHOLE else product.panels
            self._first(panels, rows, len(tiles), stream)
        if product.op == FIRST:
            target = self._inner
        else:
            panels = self._down.panels if product.op == WHOLE else product.panels
            self._second(panels, rows, len(tiles), stream)
        target[:rows].copy_to_host(out, stream=stream)

    def _first(self, panels: int, rows: int, tiles: int, stream: Any) -> None:
        """Gate and up projection: from ``_x`` to the first panels of ``_inner``."""
        self._round(self._x, self._gate, self._rounded[0], rows, stream)
        gate, up, _ = self._matrices
        threads = self._gate.form.height, self._groups
        self._gated[(panels, tiles), threads, stream](
            *self._slots, gate, up, self._tiles, *self._rounded[0].arrays, self._inner
        )

    def _second(self, panels: int, rows: int, tiles: int, stream: Any) -> None:
        """Down projection: from ``_inner`` to the first panels of ``_out``."""
        self._round(self._inner, self._down, self._rounded[1], rows, stream)
        threads = self._down.form.height, self._groups
        self._product[(panels, tiles), threads, stream](
            *self._slots, self._matrices[2], self._tiles, *self._rounded[1].arrays, self._out
        )

    def _round(self, x: Any, matrix: Matrix, rounded: _Rounded, rows: int, stream: Any) -> None:
        shape = matrix.block, matrix.blocks, int(matrix.by_row)
        self._quantise[rows, ROUNDING, stream](x, matrix.width, *rounded.arrays, *shape)


def tiles_of(slots: Sequence[int]) -> NDArray[np.int32]:
    """Rows by slot, ``forms.TILE`` at a time: slot, first row and number of rows of each tile.

    >>> tiles_of([5, 5, 7]).tolist()
    [[5, 0, 2], [7, 2, 1]]
    """
    tiles, first = [], 0
    for slot, rows in groupby(slots):
        count = len(list(rows))
        tiles += [
            (slot, first + start, min(TILE, count - start)) for start in range(0, count, TILE)
        ]
        first += count
    return np.array(tiles, np.int32)
