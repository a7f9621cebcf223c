"""The loops around tiles of the linear kernels: panels, and batch rows that take turns with them.

Weights are read from memory once: batch rows take turns, four, two or one at a time, while a few
panels are in the caches. Where several rows keep a core busy, hardware does not ask for weights in
time: turns ask for those that they or the next ones will need.

A tile has panels of one matrix, or of a gate and an up projection in the same places, so that their
outputs meet in one kernel and both are read as one stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba import int64, njit

from edgerun.kernels.jit.declare import Arguments, Body
from edgerun.kernels.lang.intrinsics import prefetch
from edgerun.kernels.lang.isa import isa_of
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.word import word
from edgerun.kernels.layouts.scale_vectors import vectors_of
from edgerun.kernels.layouts.zero_kinds import OWN
from edgerun.kernels.linear.block_tiles import block_tile
from edgerun.kernels.linear.row_tiles import row_tile
from edgerun.kernels.linear.tiles import (
    AHEAD_BYTES,
    ALONE_AHEAD_BYTES,
    LINE,
    PACKED,
    SCALES_AHEAD_BYTES,
    asks_alone,
    parts,
)
from edgerun.kernels.run import shares

STREAMS = 4  # panels that are read side by side where memory is not the limit
MOST_TOKENS = 4  # batch rows of a turn; eight gain nothing where their sums have registers
SHARED_BYTES = 24 * 1024  # of a panel, at most, that turns ask for together: 20 KB gain, 40 lose
HIDDEN_PRODUCTS = 8  # that a byte of codes can be multiplied by while the next ones are read

chunk_panels = njit(shares.chunk_panels)


@dataclass(frozen=True)
class Sides:
    """Matrices that are multiplied side by side.

    Attributes:
        matrices: how many there are.
        distances: of the arguments, how far codes and scales of the second are from the first's.
    """

    matrices: int
    distances: Any


@njit(inline="always")
def _nowhere(a):  # type: ignore[no-untyped-def]
    return 0, 0


@njit(inline="always")
def _to_up(a):  # type: ignore[no-untyped-def]
    return a.up_codes - a.codes, a.up_scales - a.scales


ALONE, GATE_AND_UP = Sides(1, _nowhere), Sides(2, _to_up)
GATED = {1: ALONE, 2: GATE_AND_UP}  # by how many matrices a gate and an up projection are


@dataclass(frozen=True)
class Product:
    """What tiles compute, and of which weights.

    Attributes:
        bits: of a code.
        lanes: bytes of a vector.
        isa: instruction set.
        sides: matrices.
        scale_vectors: how many vectors of scales a panel has, by its blocks; None where a row has
            one scale.
        multiply: makes the function that computes a tile, of its batch rows and vectors.
        has_points: whether it keeps zero points in registers.
    """

    bits: int
    lanes: int
    isa: str
    sides: Sides
    scale_vectors: Any
    multiply: Callable[[int, int], Any]
    has_points: bool = False


def row_product(bits: int, form: str, lanes: int, isa: str, sides: Sides) -> Product:
    """Tiles of int32 sums over the whole of K."""
    matrices, distances = sides.matrices, sides.distances

    def multiply_of(tokens: int, vectors: int) -> Any:
        @njit(inline="always")
        def multiply(a, row, count, panel, apart, last, sums, ahead, pace):  # type: ignore[no-untyped-def]
            tiles, stride, between = a.tiles, a.x_stride, distances(a)[0]
            row_tile(
                a.codes + panel * tiles * lanes,
                tiles * lanes,
                apart,
                last,
                between,
                lanes,
                a.x + row * stride,
                stride,
                count - 1,
                tiles,
                sums,
                ahead,
                pace,
                1,
                vectors,
                tokens,
                bits,
                form,
                lanes,
                isa,
                matrices,
            )

        return multiply

    return Product(bits, lanes, isa, sides, None, multiply_of)


def block_product(
    bits: int, lanes: int, block: int, isa: str, zeros: int, halves: int, sides: Sides
) -> Product:
    """Tiles of float32 sums of scaled blocks."""
    matrices, distances = sides.matrices, sides.distances
    scale_vectors = vectors_of(bits, zeros, halves)

    def multiply_of(tokens: int, vectors: int) -> Any:
        @njit(inline="always")
        def multiply(a, row, count, panel, apart, last, sums, ahead, pace):  # type: ignore[no-untyped-def]
            tiles, stride, blocks = a.tiles, a.x_stride, a.blocks
            between, scales_between = distances(a)
            at = row * blocks * 4
            block_tile(
                a.codes + panel * tiles * lanes,
                tiles * lanes,
                apart,
                last,
                between,
                lanes,
                a.x + row * stride,
                stride,
                count - 1,
                a.scales + panel * scale_vectors(blocks) * lanes,
                last,
                scales_between,
                a.x_scale + at,
                a.x_sum + at,
                blocks,
                0,
                blocks,
                sums,
                ahead,
                pace,
                1,
                vectors,
                tokens,
                bits,
                PACKED,
                lanes,
                isa,
                matrices,
                block,
                zeros,
                halves,
            )

        return multiply

    return Product(bits, lanes, isa, sides, scale_vectors, multiply_of, zeros == OWN)


@njit(inline="always")
def rows_in_blocks(rows, tokens, least):  # type: ignore[no-untyped-def]
    """How many of a batch's rows are done in blocks of ``tokens``, not in turns; 0 means none.

    There are none in batches of fewer than ``least`` rows. A block that is not half full is left to
    turns; a negative number of tokens stands for blocks of any size, which take all rows.
    """
    if tokens == 0 or rows < least:
        return 0
    if tokens < 0:
        return rows
    return min(rows, (rows + tokens // 2) // tokens * tokens)


def _streams(bits: int, isa: str, tokens: int) -> int:
    """Panels that are read side by side for so many batch rows."""
    return isa_of(isa).streams if tokens * 8 // bits <= HIDDEN_PRODUCTS else STREAMS


def _vectors(product: Product, tokens: int) -> int:
    """Panels of a tile, of all matrices together: their sums fill half of the registers.

    Zero points take some of the others, of which none would be left.
    """
    bits, isa = product.bits, product.isa
    room = isa_of(isa).registers // 2 // isa_of(isa).partial // parts(bits, isa)
    room >>= product.has_points
    return max(product.sides.matrices, min(_streams(bits, isa, tokens), room // tokens))


def in_turns(product: Product, store: Any) -> Body:
    """The loops around tiles: panels, and the batch rows that take turns with them.

    ``store`` is the function that stores a tile (``outputs.py``). Other kernels do the
    ``rows_in_blocks`` of the arguments ``tokens`` and ``least``; chunks are those of
    ``run/shares.py``.
    """
    bits, lanes, isa, matrices = product.bits, product.lanes, product.isa, product.sides.matrices
    ask = _asking(lanes, product.sides, product.scale_vectors)

    def turn(tokens: int) -> Any:
        vectors = _vectors(product, tokens)
        return _turn_of(vectors, matrices, product.multiply(tokens, vectors), store)

    four_rows, two_rows, one_row = turn(MOST_TOKENS), turn(2), turn(1)
    streams_of_four, streams_of_two, streams_of_one = (
        max(1, _streams(bits, isa, tokens) // matrices) for tokens in (MOST_TOKENS, 2, 1)
    )
    ahead_alone = ALONE_AHEAD_BYTES if asks_alone() else AHEAD_BYTES
    sums_bytes = STREAMS * MOST_TOKENS * lanes
    longest_shared = SHARED_BYTES if MOST_TOKENS * 8 // bits <= HIDDEN_PRODUCTS else 0

    def body(a: Arguments, chunk: int) -> None:
        rows = word(a.rows, 0)
        begin, end = chunk_panels(chunk, a.panels, a.step, a.threads)
        first = rows_in_blocks(rows, a.tokens, a.least)
        count = rows - first
        streams = streams_of_one if count == 1 else streams_of_two if count < 3 else streams_of_four
        apart = (end - begin + streams - 1) // streams
        sums = scratch(sums_bytes)
        turns = (count + MOST_TOKENS - 1) // MOST_TOKENS
        ahead, share, pace = _prefetching(a.tiles * lanes, turns, longest_shared, lanes)
        if count == 1:
            ahead = ahead_alone
        else:
            for panel in range(begin, begin + streams * apart, apart):
                ask(a, panel, ahead)
        # Three rows alone are a turn of four: while memory is waited for, the fourth costs nothing.
        last_four = first if count == 3 else rows - MOST_TOKENS
        for panel in range(begin, begin + apart):
            last, row, at = end - 1 - panel, first, ahead
            while row <= last_four:
                some = min(MOST_TOKENS, rows - row)
                four_rows(a, row, some, panel, streams, apart, last, sums, at, pace)
                row += MOST_TOKENS
                at += share
            if row + 2 <= rows:
                two_rows(a, row, 2, panel, streams, apart, last, sums, at, pace)
                row += 2
            if row < rows:
                one_row(a, row, 1, panel, streams, apart, last, sums, at, pace)

    return body


def _asking(lanes: int, sides: Sides, scale_vectors: Any) -> Any:
    """The function that asks for the first ``ahead`` bytes of a panel, and for their scales."""
    matrices, distances = sides.matrices, sides.distances
    has_blocks = scale_vectors is not None
    count = scale_vectors or _nothing

    @njit(inline="always")
    def ask(a, panel, ahead):  # type: ignore[no-untyped-def]
        to_codes, to_scales = distances(a)
        for matrix in range(matrices):
            _prefetch(a.codes + panel * a.tiles * lanes + matrix * to_codes, ahead)
            if has_blocks:
                scales = a.scales + panel * count(a.blocks) * lanes + matrix * to_scales
                _prefetch(scales, SCALES_AHEAD_BYTES)

    return ask


@njit(inline="always")
def _nothing(blocks):  # type: ignore[no-untyped-def]
    return 0


def _turn_of(vectors: int, matrices: int, multiply: Any, store_rows: Any) -> Any:
    """The function that computes and stores the outputs of ``count`` rows and ``streams`` panels.

    ``multiply`` computes those of ``vectors``, of all matrices together.
    """
    panels = vectors // matrices

    @njit
    def turn(a, row, count, panel, streams, apart, last, sums, ahead, pace):  # type: ignore[no-untyped-def]
        for stream in range(0, streams, panels):
            distance = stream * apart
            if distance <= last:
                left = last - distance
                multiply(a, row, count, panel + distance, apart, left, sums, ahead, pace)
                # Numbers of no literal type: the function is compiled once for all of them.
                rows, width = int64(count), int64(vectors)
                store_rows(a, row, rows, panel + distance, apart, left, sums, width)

    return turn


@njit(inline="always")
def _prefetching(panel_bytes, turns, longest_shared, lanes):  # type: ignore[no-untyped-def]
    """How far ahead the first turn asks for codes, how much further each next one, bytes a vector.

    All turns but the first find a panel in the caches. So that memory does not idle meanwhile,
    each asks for its share of the next panel, if that has ``longest_shared`` bytes at most.
    """
    if turns < 2 or panel_bytes > longest_shared:
        return AHEAD_BYTES, 0, lanes
    share = panel_bytes // turns
    return panel_bytes - share + AHEAD_BYTES, share, lanes // turns


@njit(inline="always")
def _prefetch(address, size):  # type: ignore[no-untyped-def]
    for line in range(address, address + size, LINE):
        prefetch(line)
