"""Products of low-bit weights with many batch rows, at the speed of the multipliers.

``linear_row`` and ``linear_block`` (``rows.py``) unpack weights anew for every few batch rows,
which is right for a few of them and costs up to a third of the speed in prefill. Here a chunk
takes its weight rows a few vectors at a time and K in pieces, unpacks a piece once to one byte a
code, in the first cache, and multiplies it by all batch rows. Batch rows are taken in blocks of
``tokens``; what is left, if less than half a block, is for the linear kernels, which leave out
the others, and so are batches of fewer than ``least`` rows. Other arguments and layouts are those
of ``rows.py``, except that activations of blocks are in tile order (``layouts/tile_order.py``)
where they could be brought into it: a tile then needs no addresses for each row, which were more
than registers. Rows with one scale need fewer, and gain nothing.

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
from edgerun.kernels.lang.isa import isa_of
from edgerun.kernels.lang.simd import load, mask_bits, shift_right, splat, store
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.word import word
from edgerun.kernels.layouts.scale_vectors import raising, vectors_of
from edgerun.kernels.layouts.starts import zeros_when_unpacked
from edgerun.kernels.layouts.tile_order import K_STEP
from edgerun.kernels.layouts.zero_kinds import OWN, RAISED
from edgerun.kernels.linear.block_tiles import block_tile
from edgerun.kernels.linear.outputs import block_values, linear_store, row_values
from edgerun.kernels.linear.row_tiles import row_tile
from edgerun.kernels.linear.rows import BLOCK_SCALES, CODES, OUTPUTS, ROW
from edgerun.kernels.linear.tiles import (
    ORDERED,
    PIECE_BYTES,
    UNPACKED,
    parts,
    zero_point,
)
from edgerun.kernels.linear.turns import ALONE, Sides, rows_in_blocks

SUMS = 16 * 1024  # of weight rows with batch rows: 64 KB of the second cache, beside activations
SLAB = 32  # weight rows, at least a tile's, that share a piece of the activations there
MOST_ROWS = SUMS // SLAB  # batch rows that share an unpacked piece, at most
# Rows in tile order are filled up, and their scales are turned.
_ROWS = "rows + packed * (-(-rows // tokens) * tokens - rows)"
MANY_BLOCKS = (
    f"{OUTPUTS} {CODES} {BLOCK_SCALES} x_scale:f32[{_ROWS}, blocks] x_sum:i32[{_ROWS}, blocks]"
    f" x:i8[{_ROWS}, tiles, 32 // bits; x_stride] x_stride least blocks"
)


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
        packed: whether activations are in tile order.
    """

    lanes: int
    bits: int
    vectors: int
    tokens: int
    sides: Sides
    pieces: int
    block: int = 0
    packed: int = 0

    @classmethod
    def of(
        cls,
        bits: int,
        lanes: int,
        tokens: int,
        isa: str,
        sides: Sides,
        block: int = 0,
        packed: int = 0,
    ) -> Tiles:
        """Those of an instruction set."""
        vectors, pieces = isa_of(isa).tile[0], parts(bits, isa)
        return cls(lanes, bits, vectors, tokens, sides, pieces, block, packed)

    @property
    def form(self) -> str:
        """How operands of a tile lie in memory (``tiles.py``)."""
        return ORDERED if self.packed else UNPACKED

    @property
    def side_by_side(self) -> int:
        """Batch rows whose steps, scales and sums lie beside each other."""
        return self.tokens if self.packed else 1

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


def driver(tiles: Tiles, unpack: Any, multiply: Any, store_rows: Any) -> Body:
    """The loops around the tiles.

    ``unpack(a, panel, step, steps, codes)`` unpacks a piece of a tile's panels. ``multiply(a, row,
    last, panel, step, steps, codes, sums)`` adds the products of its ``steps`` steps, from ``step``
    on, to the sums of those panels and a tile's batch rows, of which ``last`` is the last one's
    number. ``store_rows(a, row, count, panel, 1, last, sums, vectors)`` stores them, tile by tile:
    memory takes outputs while the next tile is multiplied.
    """
    lanes, bits, vectors, tokens = tiles.lanes, tiles.bits, tiles.vectors, tiles.tokens
    piece, panels, width = tiles.steps, tiles.panels, tiles.width
    outputs = max(SLAB, width // 4)
    most = -(-SUMS // outputs // tokens) * tokens
    slab = outputs * 4 // lanes * panels // vectors
    slab_bytes = outputs * most * 4
    steps_a_tile = 8 // bits

    def body(a: Arguments, chunk: int) -> None:
        rows = rows_in_blocks(word(a.rows, 0), tokens, a.least)
        all_steps, first = a.tiles * steps_a_tile, chunk * a.step
        end = min(a.panels, first + a.step)
        codes, sums = scratch(PIECE_BYTES), scratch(slab_bytes)
        for row in range(0, rows, most):
            count = min(most, rows - row)
            size = (count + tokens - 1) // tokens * tokens * width
            for start in range(first, end, slab):
                last = min(start + slab, end)
                _clear(sums, (last - start + panels - 1) // panels * size, lanes)
                for step in range(0, all_steps, piece):
                    steps = min(piece, all_steps - step)
                    for panel in range(start, last, panels):
                        unpack(a, panel, step, steps, codes)
                        place = sums + (panel - start) // panels * size
                        for t in range(row, row + count, tokens):
                            left = row + count - t
                            multiply(a, t, left - 1, panel, step, steps, codes, place)
                            if step + steps == all_steps:
                                some, beyond = min(tokens, left), last - 1 - panel
                                store_rows(a, t, some, panel, 1, beyond, place, vectors)
                            place += tokens * width

    return body


def row_tiles(tiles: Tiles, isa: str, store_rows: Any) -> Body:
    """A kernel of int32 sums over the whole of K."""
    bits, lanes, tokens, matrices = tiles.bits, tiles.lanes, tiles.tokens, tiles.sides.matrices
    vectors, width = tiles.vectors, tiles.width

    @njit(inline="always")
    def multiply(a, row, last, panel, step, steps, codes, sums):  # type: ignore[no-untyped-def]
        stride = a.x_stride
        row_tile(
            codes,
            lanes,
            1,
            vectors - 1,
            width // matrices,
            width,
            a.x + row * stride + step * K_STEP,
            stride,
            last,
            steps,
            sums,
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

    return driver(tiles, unpacking(tiles), multiply, store_rows)


def block_tiles(tiles: Tiles, isa: str, zeros: int, halves: int, store_rows: Any) -> Body:
    """A kernel of float32 sums of scaled blocks."""
    bits, lanes, tokens, block = tiles.bits, tiles.lanes, tiles.tokens, tiles.block
    vectors, width, matrices = tiles.vectors, tiles.width, tiles.sides.matrices
    scale_vectors, zeros = vectors_of(bits, zeros, halves), zeros_when_unpacked(bits, isa, zeros)
    raised_by, distances = block if zeros == RAISED else 0, tiles.sides.distances
    form, beside = tiles.form, tiles.side_by_side

    @njit(inline="always")
    def multiply(a, row, last, panel, step, steps, codes, sums):  # type: ignore[no-untyped-def]
        stride, blocks, first = a.x_stride, a.blocks, step * K_STEP // block
        at = (row * blocks + first * beside) * 4
        block_tile(
            codes,
            lanes,
            1,
            vectors - 1,
            width // matrices,
            width,
            a.x + row * stride + step * K_STEP * beside,
            stride,
            last,
            a.scales + panel * scale_vectors(blocks) * lanes,
            a.panels - 1 - panel,
            distances(a)[1],
            a.x_scale + at,
            a.x_sum + at,
            blocks,
            first,
            steps * K_STEP // block,
            sums,
            0,
            0,
            0,
            vectors,
            tokens,
            bits,
            form,
            lanes,
            isa,
            matrices,
            block,
            zeros,
            halves,
        )

    return driver(tiles, unpacking(tiles, raised_by, halves), multiply, store_rows)


@kernel("gemm_row", f"{ROW} least")
def gemm_row(bits: int, lanes: int, tokens: int, isa: str) -> Body:
    """One scale a weight row and one an activation row, as ``linear_row``."""
    store_rows = linear_store(row_values(zero_point(bits, isa)), lanes)
    return row_tiles(Tiles.of(bits, lanes, tokens, isa, ALONE), isa, store_rows)


@kernel("gemm_block", MANY_BLOCKS)
def gemm_block(
    bits: int,
    lanes: int,
    block: int,
    tokens: int,
    packed: int,
    isa: str,
    zeros: int,
    halves: int,
) -> Body:
    """One scale per block of K for weights and activations alike, as ``linear_block``.

    With ``packed`` activations, their scales and starts of sums are as ``order_block`` leaves them.
    """
    tiles = Tiles.of(bits, lanes, tokens, isa, ALONE, block, packed)
    return block_tiles(tiles, isa, zeros, halves, linear_store(block_values, lanes))
