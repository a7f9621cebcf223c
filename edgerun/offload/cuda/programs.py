"""The kernels of a whole expert, in order, on rows in the GPU's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from numba import cuda
from numpy.typing import NDArray

from edgerun.offload.cuda.arithmetic import SIMULATED
from edgerun.offload.cuda.forms import FEWEST, GROUPS, THREADS, THREADS_IN_ALL, TILE
from edgerun.offload.cuda.kernels import make_gated, make_product
from edgerun.offload.cuda.rounding import quantise
from edgerun.offload.cuda.slots import Matrix
from edgerun.offload.cuda.streams import Kernel, Recording, Stream
from edgerun.offload.sharing.device import (
    ALL,
    F32,
    FIRST,
    SECOND,
    WHOLE,
    DeviceSizes,
    Product,
)

# Threads that round a row; the simulator starts one of the system's for each.
ROUNDING = 1 if SIMULATED else THREADS
# Products of few rows are one call of the driver if their kind was among the last so many.
FEW_ROWS, MOST_RECORDINGS = 16, 256

I32 = NDArray[np.int32]


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
        self,
        sizes: DeviceSizes,
        matrices: Sequence[Matrix],
        activation: str,
        groups: int | None = None,
    ) -> None:
        """Takes memory of the current GPU, and compiles the kernels for it.

        Args:
            sizes: of slots and rows.
            matrices: gate, up and down.
            activation: of the gate.
            groups: threads that share a row of a panel; if left out, as many as are fastest.
        """
        self._gate, other, self._down = matrices
        self.sizes, rows = sizes, sizes.rows
        self._groups = groups or (1 if SIMULATED else 0)
        self.memory = cuda.device_array(sizes.slots * sizes.slot_bytes, np.uint8)
        self._x = cuda.device_array((rows, sizes.width), np.float32)
        self._inner = cuda.device_array((rows, sizes.inner), np.float32)
        self._out = cuda.device_array((rows, sizes.width), np.float32)
        self._tiles = cuda.device_array((rows, 3), np.int32)
        self._tiles_here = cuda.pinned_array((rows, 3), np.int32)
        before, between = (_Rounded(rows, matrix) for matrix in (self._gate, self._down))
        gate, up, down = (cuda.to_device(matrix.words) for matrix in matrices)
        slots = self.memory.view(np.int32), self.memory.view(np.float32), sizes.slot_bytes // 4
        self._round_x = Kernel(quantise, _rounding(self._x, self._gate, before))
        self._round_inner = self._round_x.bound_to(_rounding(self._inner, self._down, between))
        first = *slots, gate, up, self._tiles, *before.arrays, self._inner
        second = *slots, down, self._tiles, *between.arrays, self._out
        gated = partial(make_gated, self._gate.form, other.form, activation)
        product = partial(make_product, self._down.form)
        self._first = {tile: Kernel(gated(tile), first) for tile in GROUPS}
        self._second = {tile: Kernel(product(tile), second) for tile in GROUPS}
        # The latest kind last; None of one that came once.
        self._recordings: dict[tuple[Any, ...], Recording | None] = {}

    def run(
        self,
        x: F32,
        slots: Sequence[int],
        out: F32,
        stream: Stream,
        product: Product = ALL,
        first: int = 0,
    ) -> None:
        """Queues the products of some rows; ``x`` and ``out`` must be pinned and stay.

        Args:
            x: float32 ``[rows, width]``, or what lies between the products.
            slots: of each row's expert; rows of the same follow one another.
            out: gets what comes out, when the stream is there.
            stream: that it is queued in.
            product: what of the expert.
            first: commands whose rows, counted from here, overlap must not be under way together.
        """
        tiles = tiles_of(slots)
        tile = 1 if len(tiles) == len(slots) else TILE
        here = self._tiles_here[first : first + len(tiles)]
        here[:] = tiles
        queue = partial(self._queue, x, here, out, stream, tile, product)
        if len(x) > FEW_ROWS:  # takes longer than the calls, and hardly comes again
            queue()
            return
        # Of the same length in the same memory: then only what is in there is new.
        key = len(x), len(here), first, product, *map(_address, (x, out))
        recording = self._recording(key, stream, queue)
        if recording is None:
            queue()
        else:
            stream.replay(recording)

    def _recording(
        self, key: tuple[Any, ...], stream: Stream, queue: Callable[[], None]
    ) -> Recording | None:
        """Of products of a kind that was queued lately; None if there were none."""
        is_new = key not in self._recordings
        recording = self._recordings.pop(key, None)
        if recording is None and not is_new:
            recording = Recording(stream, queue)
        self._recordings[key] = recording  # behind all others
        if len(self._recordings) > MOST_RECORDINGS:
            del self._recordings[next(iter(self._recordings))]
        return recording

    def _queue(
        self, x: F32, tiles: I32, out: F32, stream: Stream, tile: int, product: Product
    ) -> None:
        """Queues copies and kernels one by one."""
        stream.upload(self._tiles, tiles)
        stream.upload(self._inner if product.op == SECOND else self._x, x)
        if product.op != SECOND:
            panels = self._gate.panels if product.op == WHOLE else product.panels
            grid = panels, len(tiles)
            stream.launch(self._round_x, (len(x), 1), (ROUNDING, 1))
            stream.launch(self._first[tile], grid, self._block(self._gate, tile, grid))
        if product.op != FIRST:
            panels = self._down.panels if product.op == WHOLE else product.panels
            grid = panels, len(tiles)
            stream.launch(self._round_inner, (len(x), 1), (ROUNDING, 1))
            stream.launch(self._second[tile], grid, self._block(self._down, tile, grid))
        stream.download(out, self._inner if product.op == FIRST else self._out)

    def _block(self, matrix: Matrix, tile: int, grid: tuple[int, int]) -> tuple[int, int]:
        """Threads of a block."""
        height, most = matrix.form.height, GROUPS[tile]
        if self._groups or tile > 1:
            return height, self._groups or most
        return height, min(most, max(FEWEST, THREADS_IN_ALL // (height * grid[0] * grid[1])))


def _address(array: F32) -> int:
    return int(array.__array_interface__["data"][0])


def _rounding(x: Any, matrix: Matrix, rounded: _Rounded) -> tuple[Any, ...]:
    """Arguments of ``quantise``."""
    shape = matrix.block, matrix.blocks, int(matrix.by_row)
    return (x, matrix.width, *rounded.arrays, *shape)


def tiles_of(slots: Sequence[int]) -> I32:
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
