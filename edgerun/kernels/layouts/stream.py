"""The stream layout: how low-bit weights lie in memory while they are multiplied.

K is cut into tiles of ``lanes * 8 / bits`` weights. One vector of ``lanes`` bytes holds one tile
of one row: byte j has weights j, j + lanes, j + 2 * lanes, ... of the tile in ascending bits, so
that unpacking needs a shift and a mask and no shuffle. The tiles of a row follow one another,
then the next row. Kernels take rows in groups of four, from four places far apart: several
streams reach the bandwidth of the memory, one alone does not (27 against 19 GB/s on one Zen 3
core). Rows and tiles are padded: rows with scale zero, tiles with any code, because the
activations there are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import PackedWeight
from edgerun.kernels.host.cores import cores
from edgerun.kernels.host.huge_pages import zeroed_memory
from edgerun.kernels.jit.registry import native

GROUP = 4
LINE = 64
SLAB_GROUPS = 64  # groups of rows that a thread rearranges at a time
PIECE_BYTES = 8 << 20  # of packed codes that are in memory at a time
SHARED_BYTES = 1 << 20  # of a matrix that several threads rearrange
Read: TypeAlias = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class StreamWeight:
    """A weight matrix in the stream layout.

    Attributes:
        codes: uint8 ``[rows, tiles, lanes]``; ``rows`` is N rounded up to whole groups.
        scales: float32 ``[rows, blocks]``; ``blocks`` is 1 when a row has one scale.
        shape: ``(N, K)`` without padding.
        bits: of a code.
        block: weights that share a scale; the padded K when a row has one scale.
        lanes: bytes of a vector.
        ternary: whether all weights are -1, 0 or 1 times their scale.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    shape: tuple[int, int]
    bits: int
    block: int
    lanes: int
    ternary: bool

    @property
    def tile(self) -> int:
        """Weights of one row in one vector."""
        return self.lanes * 8 // self.bits

    @property
    def padded_k(self) -> int:
        """K rounded up to whole tiles."""
        return int(self.codes.shape[1]) * self.tile

    @property
    def nbytes(self) -> int:
        """Bytes that one pass over the matrix reads."""
        return self.codes.nbytes + self.scales.nbytes


def to_stream(
    packed: PackedWeight,
    lanes: int,
    *,
    row_scale: bool,
    arena: Arena | None = None,
    read: Read = lambda rows: rows,
) -> StreamWeight:
    """Rearranges a packed weight; ``row_scale`` demands equal scales along each row.

    The result lies in ``arena``, or in memory of its own. ``read`` brings some rows of packed
    codes into memory, where they must stay until its next call, so that no large matrix is in
    memory twice.
    """
    n, k = packed.shape
    bits = packed.bits
    tile = lanes * 8 // bits
    unit = tile if row_scale else max(tile, packed.block)
    tiles, groups = -(-k // unit) * unit // tile, -(-n // GROUP)
    own = arena or Arena(piece=0)
    codes = own.zeros((groups * GROUP, tiles, lanes))
    ternary = _fill_codes(packed, codes, read)
    block = tiles * tile if row_scale else packed.block
    scales = packed.scales[:, :1] if row_scale else packed.scales
    padded = np.zeros((groups * GROUP, tiles * tile // block), np.float32)
    padded[:n, : scales.shape[1]] = scales
    return StreamWeight(codes, padded, (n, k), bits, block, lanes, ternary)


def _fill_codes(packed: PackedWeight, codes: NDArray[np.uint8], read: Read) -> bool:
    """Runs the ``repack`` kernel over all groups, on as many threads as there are cores.

    Returns whether the codes are ternary: of two bits, and none is 0, which stands for -2.
    """
    rows = np.ascontiguousarray(packed.codes.reshape(packed.shape[0], -1))
    groups, tiles, lanes = len(codes) // GROUP, codes.shape[1], codes.shape[2]
    spare = np.zeros((groups, GROUP, lanes), np.uint8)
    chunks = -(-groups // SLAB_GROUPS)
    zeros = np.zeros((chunks, 16), np.uint8)
    fields = [0, codes.ctypes.data, *rows.shape, tiles, spare.ctypes.data]
    arguments = np.array([*fields, SLAB_GROUPS, zeros.ctypes.data], np.int64)
    function = native("repack", bits=packed.bits, lanes=lanes)
    at_once = max(1, PIECE_BYTES // (SLAB_GROUPS * GROUP * rows.shape[1]))
    for first in range(0, chunks, at_once):
        some = range(first, min(chunks, first + at_once))
        row = some.start * SLAB_GROUPS * GROUP
        piece = read(rows[row : some.stop * SLAB_GROUPS * GROUP])
        arguments[0] = piece.ctypes.data - row * rows.shape[1]  # where row 0 would lie
        on_all_cores(function, arguments, some, rows.nbytes)
    return packed.bits == 2 and not zeros.any()


def on_all_cores(
    function: Callable[[int, int], None],
    arguments: NDArray[np.int64],
    chunks: Iterable[int],
    nbytes: int,
) -> None:
    """Calls a kernel for every chunk, on as many threads as there are cores if that pays.

    ``nbytes`` is the size of the matrix: a small one is done before threads have started.
    """
    address = arguments.ctypes.data
    if nbytes < SHARED_BYTES:
        for chunk in chunks:
            function(address, chunk)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(cores().usable) as pool:
        list(pool.map(lambda chunk: function(address, chunk), chunks))


class Arena:
    """Zeroed memory for many matrices, on pages of 2 MiB where the system has them.

    With pages of 4 KiB a core that streams weights spends a sixth of its time on translation.
    Matrices lie one after the other, so that no more than the last page of a piece is wasted.
    """

    def __init__(self, piece: int = 64 << 20) -> None:
        """Makes an empty arena that grows by ``piece`` bytes, or more for a larger matrix."""
        self._piece = piece
        self._free: NDArray[np.uint8] = np.zeros(0, np.uint8)

    def zeros(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """A zeroed uint8 array that starts on a cache line and keeps its memory alive."""
        size = int(np.prod(shape))
        room = -(-size // LINE) * LINE
        if room > len(self._free):
            self._free = zeroed_memory(max(room, self._piece))
        taken, self._free = self._free[:room], self._free[room:]
        return taken[:size].reshape(shape)
