"""Products of low-bit weights with many batch rows, at the speed of the multipliers.

``linear_row`` and ``linear_block`` (``rows.py``) unpack weights anew for every few batch rows,
which is right for a few of them and costs up to a third of the speed in prefill. Here a chunk
takes its weight rows a few vectors at a time and K in pieces, unpacks a piece once to one byte a
code, in the first cache, and multiplies it by all batch rows. Batch rows are taken in blocks of
``tokens``; what is left, if less than half a block, is for the linear kernels, which leave out
the others, and so are batches of fewer than ``least`` rows. Other arguments and layouts are those
of ``rows.py``.

Bounds: ``gemm_row`` is exact up to its scaling. ``gemm_block`` has exact sums of blocks, scaled and
added up in order; the float32 accumulation over B blocks adds at most B * 2**-24 of the sum of
magnitudes. Both do the float operations of ``linear_row`` and ``linear_block`` in the same order:
results have the same bits, and depend neither on the number of batch rows nor on the split into
chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba import njit, uint8

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.dot import DOTS
from edgerun.kernels.lang.isa import isa_of
from edgerun.kernels.lang.simd import load, mask_bits, shift_right, splat, store
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.word import word
from edgerun.kernels.layouts.scale_vectors import raising, vectors_of
from edgerun.kernels.layouts.zero_kinds import OWN, RAISED
from edgerun.kernels.linear.block_tiles import block_tile
from edgerun.kernels.linear.outputs import block_values, linear_store, row_values
from edgerun.kernels.linear.row_tiles import row_tile
from edgerun.kernels.linear.rows import BLOCK, ROW
from edgerun.kernels.linear.tiles import (
    K_STEP,
    PIECE_BYTES,
    UNPACKED,
    parts,
    zero_point,
)
from edgerun.kernels.linear.turns import ALONE, Sides, rows_in_blocks

MOST_ROWS = 256  # batch rows that share an unpacked piece
SLAB = 64  # weight rows that share a piece of the activations in the second cache


@dataclass(frozen=True)
class Tiles:
    """What fits in the loops around tiles.

    Attributes:
        lanes: bytes of a vector.
        bits: of a code.
        vectors: of weight rows in a tile.
        tokens: batch rows of a tile.
        sides: matrices that the vectors belong to, as many to each.
        pieces: parts that codes are multiplied in.
        block: weights with a scale; 0 where a row has one.
    """

    lanes: int
    bits: int
    vectors: int
    tokens: int
    sides: Sides
    pieces: int
    block: int = 0

    @classmethod
    def of(
        cls, bits: int, lanes: int, tokens: int, isa: str, sides: Sides, block: int = 0
    ) -> Tiles:
        """Those of an instruction set."""
        return cls(lanes, bits, isa_of(isa).tile[0], tokens, sides, parts(bits, isa), block)

    @property
    def panels(self) -> int:
        """Of each matrix in a tile."""
        return self.vectors // self.sides.matrices

    @property
    def width(self) -> int:
        """Bytes of a step of all vectors."""
        return self.vectors * self.lanes

    @property
    def steps(self) -> int:
        """Steps along K that are unpacked at a time: whole blocks, or whole loops of a tile."""
        unit = max(8, self.block // K_STEP)
        return PIECE_BYTES // (self.pieces * self.width * unit) * unit


@njit(inline="always")
def _clear(address: int, size: int, lanes):  # type: ignore[no-untyped-def]
    for place in range(address, address + size, lanes):
        store(place, splat(0, "i8", lanes))


def zeros_when_unpacked(bits: int, isa: str, zeros: int) -> int:
    """What zero points of blocks are where codes have been unpacked (``layouts/zero_kinds.py``).

    Raised codes have a bit more than codes: as bytes they stay in their range, sums of two products
    do not.
    """
    is_narrow = bits == 8 or DOTS[isa_of(isa).dots].depth(bits) > 0
    return RAISED if zeros == OWN and not is_narrow else zeros


def unpacking(tiles: Tiles, raised_by: int = 0, halves: int = 0) -> Any:
    """The function that unpacks ``steps`` steps, from ``step`` on, of the panels from ``panel`` on.

    ``codes`` becomes uint8 ``[steps, vectors, lanes]``, and so much further on has the next piece
    of the codes, if there are several; panels beyond the last are read as it. Vectors are
    consecutive panels, those of one matrix behind the other's. If blocks of ``raised_by`` weights
    have zero points, codes are raised such that all stand for the greatest. With ``halves`` scales
    are float16.
    """
    bits, lanes, vectors, pieces = tiles.bits, tiles.lanes, tiles.vectors, tiles.pieces
    planes, low = 8 // bits, (1 << bits) - 1
    panels, distances = tiles.panels, tiles.sides.distances
    vectors_a_block = max(1, raised_by * bits // 32)
    raised, scale_vectors = raising(bits, halves, lanes // 4), vectors_of(bits, OWN, halves)

    @njit(inline="always")
    def distance(a, panel, matrix, tile):  # type: ignore[no-untyped-def]
        if raised_by:
            scales = a.scales + panel * scale_vectors(a.blocks) * lanes
            scales += matrix * distances(a)[1]
            return raised(scales, tile // vectors_a_block)
        return splat(uint8(0), "u8", lanes)

    @njit(inline="always")
    def unpack(a, panel, step, steps, codes):  # type: ignore[no-untyped-def]
        tiles, between = a.tiles, distances(a)[0]
        for v in range(vectors):
            present, matrix = min(panel + v % panels, a.panels - 1), v // panels
            source = a.codes + (present * tiles + step // planes) * lanes + matrix * between
            target = codes + v * lanes
            first = step // planes
            for tile in range(first, first + steps // planes):
                packed = load(source, "u8", lanes)
                _store_planes(packed, target, distance(a, present, matrix, tile))
                source += lanes
                target += planes * vectors * lanes

    @njit(inline="always")
    def _store_planes(packed, target, more):  # type: ignore[no-untyped-def]
        apart = vectors * lanes
        if bits == 8 and pieces == 2:
            store(target, mask_bits(packed, 15))
            store(target + PIECE_BYTES // 2, shift_right(packed, 4))
        elif bits == 8:
            store(target, packed)
        elif bits == 4:
            store(target, mask_bits(packed, low) + more)
            store(target + apart, shift_right(packed, 4) + more)
        else:
            store(target, mask_bits(packed, low) + more)
            store(target + apart, mask_bits(shift_right(packed, 2), low) + more)
            store(target + 2 * apart, mask_bits(shift_right(packed, 4), low) + more)
            store(target + 3 * apart, shift_right(packed, 6) + more)

    return unpack


def driver(tiles: Tiles, multiply: Any, store_rows: Any) -> Body:
    """The loops around the tiles.

    ``multiply(a, row, count, panel, step, steps, codes, sums)`` adds the products of ``steps``
    steps, from ``step`` on, to the sums of a tile's panels and ``count`` batch rows.
    ``store_rows(a, row, count, panel, 1, last, sums, vectors)`` stores them.
    """
    lanes, bits, vectors, tokens = tiles.lanes, tiles.bits, tiles.vectors, tiles.tokens
    piece, panels, width = tiles.steps, tiles.panels, tiles.width
    slab = SLAB * 4 // lanes * panels // vectors
    slab_bytes = SLAB * (MOST_ROWS + tokens) * 4  # the last tile may have rows beyond the others
    steps_a_tile = 8 // bits

    def body(a: Arguments, chunk: int) -> None:
        rows = rows_in_blocks(word(a.rows, 0), tokens, a.least)
        all_steps, first = a.tiles * steps_a_tile, chunk * a.step
        end = min(a.panels, first + a.step)
        codes, sums = scratch(PIECE_BYTES), scratch(slab_bytes)
        for row in range(0, rows, MOST_ROWS):
            count = min(MOST_ROWS, rows - row)
            size = (count + tokens - 1) // tokens * tokens * width
            for start in range(first, end, slab):
                last = min(start + slab, end)
                _clear(sums, (last - start + panels - 1) // panels * size, lanes)
                for step in range(0, all_steps, piece):
                    steps = min(piece, all_steps - step)
                    for panel in range(start, last, panels):
                        place = sums + (panel - start) // panels * size
                        multiply(a, row, count, panel, step, steps, codes, place)
                for panel in range(start, last, panels):
                    place = sums + (panel - start) // panels * size
                    store_rows(a, row, count, panel, 1, last - 1 - panel, place, vectors)

    return body


def row_tiles(bits: int, lanes: int, tokens: int, isa: str, sides: Sides, store_rows: Any) -> Body:
    """A kernel of int32 sums over the whole of K."""
    tiles = Tiles.of(bits, lanes, tokens, isa, sides)
    vectors, width, matrices, unpack = tiles.vectors, tiles.width, sides.matrices, unpacking(tiles)

    @njit(inline="always")
    def multiply(a, row, count, panel, step, steps, codes, sums):  # type: ignore[no-untyped-def]
        stride = a.x_stride
        unpack(a, panel, step, steps, codes)
        x = a.x + row * stride + step * K_STEP
        for t in range(0, count, tokens):
            row_tile(
                codes,
                lanes,
                1,
                vectors - 1,
                width // matrices,
                width,
                x + t * stride,
                stride,
                count - 1 - t,
                steps,
                sums + t * width,
                0,
                0,
                0,
                vectors,
                tokens,
                bits,
                UNPACKED,
                lanes,
                isa,
                matrices,
            )

    return driver(tiles, multiply, store_rows)


def block_tiles(
    bits: int,
    lanes: int,
    block: int,
    tokens: int,
    isa: str,
    zeros: int,
    halves: int,
    sides: Sides,
    store_rows: Any,
) -> Body:
    """A kernel of float32 sums of scaled blocks."""
    tiles = Tiles.of(bits, lanes, tokens, isa, sides, block)
    vectors, width, matrices = tiles.vectors, tiles.width, sides.matrices
    scale_vectors, zeros = vectors_of(bits, zeros, halves), zeros_when_unpacked(bits, isa, zeros)
    raised_by, distances = block if zeros == RAISED else 0, sides.distances
    unpack = unpacking(tiles, raised_by, halves)

    @njit(inline="always")
    def multiply(a, row, count, panel, step, steps, codes, sums):  # type: ignore[no-untyped-def]
        stride, blocks, first = a.x_stride, a.blocks, step * K_STEP // block
        unpack(a, panel, step, steps, codes)
        x = a.x + row * stride + step * K_STEP
        for t in range(0, count, tokens):
            at = ((row + t) * blocks + first) * 4
            block_tile(
                codes,
                lanes,
                1,
                vectors - 1,
                width // matrices,
                width,
                x + t * stride,
                stride,
                count - 1 - t,
                a.scales + panel * scale_vectors(blocks) * lanes,
                a.panels - 1 - panel,
                distances(a)[1],
                a.x_scale + at,
                a.x_sum + at,
                blocks,
                first,
                steps * K_STEP // block,
                sums + t * width,
                0,
                0,
                0,
                vectors,
                tokens,
                bits,
                UNPACKED,
                lanes,
                isa,
                matrices,
                block,
                zeros,
                halves,
            )

    return driver(tiles, multiply, store_rows)


@kernel("gemm_row", f"{ROW} least")
def gemm_row(bits: int, lanes: int, tokens: int, isa: str) -> Body:
    """One scale a weight row and one an activation row, as ``linear_row``."""
    store_rows = linear_store(row_values(zero_point(bits, isa)), lanes)
    return row_tiles(bits, lanes, tokens, isa, ALONE, store_rows)


@kernel("gemm_block", f"{BLOCK} least")
def gemm_block(
    bits: int, lanes: int, block: int, tokens: int, isa: str, zeros: int, halves: int
) -> Body:
    """One scale per block of K for weights and activations alike, as ``linear_block``."""
    store_rows = linear_store(block_values, lanes)
    return block_tiles(bits, lanes, block, tokens, isa, zeros, halves, ALONE, store_rows)
