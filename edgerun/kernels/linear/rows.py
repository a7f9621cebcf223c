"""Linear layers over low-bit weights in the stream layout (``layouts/stream.py``).

All kernels compute ``out[t, n] = sum_k x[t, k] * w[n, k] (+ bias[n]) (+ out[t, n])`` for the
rows of a batch; a chunk is ``step`` panels of weight rows, for all batch rows. Activations
arrive as int8 with scales (``pointwise/quantize.py``) or as float32. Weights are read from
memory once: batch rows take turns, four, two or one at a time, while a few panels are in the
caches, and a vector of weights is unpacked once for the rows of a turn.

Bounds: integer dot products are exact; blocks are scaled and added up in their order, and the
float32 accumulation over B of them adds at most B * 2**-24 of the sum of magnitudes.
"""

from __future__ import annotations

from typing import Any

from numba import float32, int32, njit

from edgerun.formats.trits import DIGITS
from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import cast, fma, load, reduce_add, splat, store
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.word import float_at, int_at, set_float, word
from edgerun.kernels.linear.block_tiles import block_tile
from edgerun.kernels.linear.float_tiles import float_tile
from edgerun.kernels.linear.row_tiles import row_tile
from edgerun.kernels.linear.tiles import K_STEP, PACKED, TRITS, zero_point
from edgerun.kernels.linear.turns import in_turns, turn_of, vectors_of

# Arguments that linear kernels share.
OUTPUTS = (
    "rows:i64[1] bias?:f32[n] out:f32[rows, n; out_stride] out_stride n panels step tiles"
    " accumulate"
)
CODES = "codes:u8[panels, tiles, lanes]"
ROW_SCALES = "scales:f32[panels, lanes // 4]"
BLOCK_SCALES = "scales:f32[panels, lanes // 4, blocks]"
ROW_OUTPUTS = f"{OUTPUTS} {CODES} {ROW_SCALES} x_scale:f32[rows] x_sum:i32[rows]"
X = "x:i8[rows, tiles, 32 // bits; x_stride] x_stride"
ROW = f"{ROW_OUTPUTS} {X}"
BLOCK = (
    f"{OUTPUTS} {CODES} {BLOCK_SCALES} x_scale:f32[rows, blocks] x_sum:i32[rows, blocks] {X} blocks"
)


@njit
def finish(a: Arguments, row: int, n: int, value: float) -> None:
    """Adds bias and residual and stores one output, unless ``n`` is padding."""
    if n < a.n:
        index = row * a.out_stride + n
        if a.bias != 0:
            value += float_at(a.bias, n)
        if a.accumulate != 0:
            value += float_at(a.out, index)
        set_float(a.out, index, value)


@njit(inline="always")
def finish_vector(a, row, n, value, lanes):  # type: ignore[no-untyped-def]
    """The same for outputs ``n``, ``n + 1``, ..., none of which is padding."""
    place = a.out + (row * a.out_stride + n) * 4
    if a.bias != 0:
        value = value + load(a.bias + n * 4, "f32", lanes)
    if a.accumulate != 0:
        value = value + load(place, "f32", lanes)
    store(place, value)


def row_store(middle: int, lanes: int, vectors: int) -> Any:
    """The function that scales and stores int32 ``sums[count, vectors, floats]``.

    ``middle`` is what codes are above the weights they stand for.

    They belong to batch rows from ``row`` on and to panels from ``panel`` on, ``apart`` from each
    other; those more than ``last`` further are none.
    """
    floats = lanes // 4

    @njit(inline="always")
    def store_rows(a, row, count, panel, apart, last, sums):  # type: ignore[no-untyped-def]
        for t in range(row, row + count):
            offset = middle * int_at(a.x_sum, t)
            factor = float_at(a.x_scale, t)
            for v in range(vectors):
                n, at = (panel + v * apart) * floats, sums + v * lanes
                if v * apart <= last and n + floats <= a.n:
                    total = load(at, "i32", floats) - splat(int32(offset), "i32", floats)
                    value = cast(total, "f32") * splat(factor, "f32", floats)
                    value = value * load(a.scales + n * 4, "f32", floats)
                    finish_vector(a, t, n, value, floats)
                elif v * apart <= last:
                    for r in range(a.n - n):
                        single = float32(int_at(at, r) - offset) * factor
                        finish(a, t, n + r, single * float_at(a.scales, n + r))
            sums += vectors * lanes

    return store_rows


def block_store(lanes: int, vectors: int) -> Any:
    """The function that stores float32 sums likewise."""
    floats = lanes // 4

    @njit(inline="always")
    def store_rows(a, row, count, panel, apart, last, sums):  # type: ignore[no-untyped-def]
        for t in range(row, row + count):
            for v in range(vectors):
                n, at = (panel + v * apart) * floats, sums + v * lanes
                if v * apart <= last and n + floats <= a.n:
                    finish_vector(a, t, n, load(at, "f32", floats), floats)
                elif v * apart <= last:
                    for r in range(a.n - n):
                        finish(a, t, n + r, float_at(at, r))
            sums += vectors * lanes

    return store_rows


def row_turns(bits: int, form: str, lanes: int, isa: str) -> Body:
    """A kernel over rows with one scale."""

    def turn(tokens: int) -> Any:
        vectors = vectors_of(bits, isa, tokens)

        @njit(inline="always")
        def multiply(a, row, panel, apart, last, sums, ahead, pace):  # type: ignore[no-untyped-def]
            tiles, stride = a.tiles, a.x_stride
            row_tile(
                a.codes + panel * tiles * lanes,
                tiles * lanes,
                apart,
                last,
                lanes,
                a.x + row * stride,
                stride,
                tokens - 1,
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
            )

        store_rows = row_store(zero_point(bits, isa, form), lanes, vectors)
        return turn_of(tokens, vectors, multiply, store_rows)

    return in_turns(turn, bits, lanes, isa, blocks=False)


@kernel("linear_row", ROW + " lookup")
def linear_row(bits: int, lanes: int, isa: str) -> Body:
    """One scale a weight row and one an activation row: int32 over the whole of K.

    ``x`` is int8 ``[rows, x_stride]``, zero from K to the padded K; ``x_scale`` float32
    ``[rows]``; ``x_sum`` int32 ``[rows]``, the sum of the row's codes. The first rows are left
    out if other kernels do them: ``lookup`` is their number of tokens a block, or 0.
    """
    return row_turns(bits, PACKED, lanes, isa)


@kernel(
    "linear_trits",
    f"{ROW_OUTPUTS} x:i8[rows, tiles, {DIGITS * K_STEP}; x_stride] x_stride lookup",
)
def linear_trits(lanes: int, isa: str) -> Body:
    """``linear_row`` for ternary weights of 1.6 bits, five to a byte (``formats/trits.py``).

    ``codes`` is uint8 ``[panels, tiles, lanes]`` of trits. Fewer bytes cost more instructions:
    that pays where memory, not the core, is the limit.
    """
    return row_turns(2, TRITS, lanes, isa)


@kernel("linear_block", BLOCK + " lookup")
def linear_block(bits: int, lanes: int, block: int, isa: str) -> Body:
    """One scale per block of K for weights and activations alike.

    ``x`` is int8 ``[rows, x_stride]``; ``x_scale`` float32 ``[rows, blocks]``; ``x_sum`` int32
    ``[rows, blocks]``, the sum of the block's codes; ``scales`` is float32 ``[panels, blocks,
    lanes / 4]``. The first rows are left out if other kernels do them, as in ``linear_row``.
    """

    def turn(tokens: int) -> Any:
        vectors = vectors_of(bits, isa, tokens)

        @njit(inline="always")
        def multiply(a, row, panel, apart, last, sums, ahead, pace):  # type: ignore[no-untyped-def]
            tiles, stride, blocks = a.tiles, a.x_stride, a.blocks
            at = row * blocks * 4
            block_tile(
                a.codes + panel * tiles * lanes,
                tiles * lanes,
                apart,
                last,
                lanes,
                a.x + row * stride,
                stride,
                tokens - 1,
                a.scales + panel * blocks * lanes,
                last,
                a.x_scale + at,
                a.x_sum + at,
                blocks,
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
                block,
            )

        return turn_of(tokens, vectors, multiply, block_store(lanes, vectors))

    return in_turns(turn, bits, lanes, isa, blocks=True)


@kernel(
    "linear_float",
    f"{OUTPUTS} {CODES} {BLOCK_SCALES} x:f32[rows, tiles, 32 // bits; x_stride] x_stride blocks",
)
def linear_float(bits: int, lanes: int, block: int) -> Body:
    """Weights with block scales, activations in float32 ``[rows, x_stride]``; no rounding of x."""
    floats = lanes // 4

    def body(a: Arguments, chunk: int) -> None:
        tiles, blocks = a.tiles, a.blocks
        begin = chunk * a.step
        sums = scratch(lanes)
        for panel in range(begin, min(a.panels, begin + a.step)):
            w = a.codes + panel * tiles * lanes
            scales, n = a.scales + panel * blocks * lanes, panel * floats
            for row in range(word(a.rows, 0)):
                x = a.x + row * a.x_stride * 4
                float_tile(w, x, scales, blocks, sums, bits, lanes, block)
                for r in range(min(floats, a.n - n)):
                    finish(a, row, n + r, float_at(sums, r))

    return body


@kernel(
    "linear_dense",
    OUTPUTS + " codes:f32[n, tiles, width] x:f32[rows, tiles, width; x_stride] x_stride",
)
def linear_dense(width: int) -> Body:
    """float32 weights ``[N, tiles * width]`` (K padded with zeros), float32 activations.

    A panel is four rows.
    """

    def body(a: Arguments, chunk: int) -> None:
        tiles = a.tiles
        last = min(a.panels, (chunk + 1) * a.step) * 4
        for row in range(word(a.rows, 0)):
            for n in range(chunk * a.step * 4, min(last, a.n)):
                x = a.x + row * a.x_stride * 4
                w = a.codes + n * tiles * width * 4
                total = splat(float32(0), "f32", width)
                for _tile in range(tiles):
                    total = fma(load(w, "f32", width), load(x, "f32", width), total)
                    w += width * 4
                    x += width * 4
                finish(a, row, n, reduce_add(total))

    return body
