"""The stream layout: how low-bit weights lie in memory while they are multiplied.

Rows are taken in groups of four and K in tiles of ``lanes * 8 / bits`` weights. One vector of
``lanes`` bytes holds one tile of one row: byte j has weights j, j + lanes, j + 2 * lanes, ... of
the tile in ascending bits, so that unpacking needs a shift and a mask and no shuffle. The four
vectors of a group follow one another, then the next tile: a thread reads one linear stream.
Scales lie the same way, ``[group, block, 4]``. Rows and tiles are padded: rows with scale zero,
tiles with any code, because the activations there are zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import PackedWeight, unpack_bits

GROUP = 4


@dataclass(frozen=True, slots=True)
class StreamWeight:
    """A weight matrix in the stream layout.

    Attributes:
        codes: uint8 ``[groups, tiles, 4, lanes]``.
        scales: float32 ``[groups, blocks, 4]``; ``blocks`` is 1 when a row has one scale.
        shape: ``(N, K)`` without padding.
        bits: of a code.
        block: weights that share a scale; the padded K when a row has one scale.
        lanes: bytes of a vector.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    shape: tuple[int, int]
    bits: int
    block: int
    lanes: int

    @property
    def tile(self) -> int:
        """Weights of one row in one vector."""
        return self.lanes * 8 // self.bits

    @property
    def padded_k(self) -> int:
        """K rounded up to whole tiles."""
        return self.codes.shape[1] * self.tile

    @property
    def nbytes(self) -> int:
        """Bytes that one pass over the matrix reads."""
        return self.codes.nbytes + self.scales.nbytes


def to_stream(packed: PackedWeight, lanes: int, *, row_scale: bool) -> StreamWeight:
    """Rearranges a packed weight; ``row_scale`` demands equal scales along each row.

    The result is one new array; temporaries stay below 16 MiB.
    """
    n, k = packed.shape
    bits = packed.bits
    tile = lanes * 8 // bits
    unit = tile if row_scale else max(tile, packed.block)
    tiles, groups = -(-k // unit) * unit // tile, -(-n // GROUP)
    codes = np.zeros((groups, tiles, GROUP, lanes), np.uint8)
    step = max(1, (2 << 20) // max(1, tiles * tile * GROUP))
    for first in range(0, groups, step):
        last = min(groups, first + step)
        rows = packed.codes[first * GROUP : last * GROUP]
        codes[first:last] = _stream_codes(rows, last - first, bits, tiles, lanes)
    block = tiles * tile if row_scale else packed.block
    scales = packed.scales[:, :1] if row_scale else packed.scales
    padded = np.zeros((groups * GROUP, tiles * tile // block), np.float32)
    padded[:n, : scales.shape[1]] = scales
    interleaved = padded.reshape(groups, GROUP, -1).transpose(0, 2, 1)
    return StreamWeight(codes, np.ascontiguousarray(interleaved), (n, k), bits, block, lanes)


def _stream_codes(
    rows: NDArray[np.uint8], groups: int, bits: int, tiles: int, lanes: int
) -> NDArray[np.uint8]:
    planes = 8 // bits
    codes = np.zeros((groups * GROUP, tiles * planes * lanes), np.uint8)
    unpacked = unpack_bits(rows.reshape(len(rows), -1), bits)[:, : codes.shape[1]]
    codes[: len(rows), : unpacked.shape[1]] = unpacked
    tiled = codes.reshape(groups, GROUP, tiles, planes, lanes)
    packed = tiled[:, :, :, 0].copy()
    for plane in range(1, planes):
        packed |= tiled[:, :, :, plane] << np.uint8(plane * bits)
    return packed.transpose(0, 2, 1, 3)
