"""Linear layers over low-bit weights in the stream layout (``layouts/stream.py``).

All kernels compute ``out[t, n] = sum_k x[t, k] * w[n, k] (+ bias[n]) (+ out[t, n])`` for the
rows of a batch; a chunk is some panels of weight rows (``run/shares.py``), for all batch rows.
Activations arrive as int8 with scales (``pointwise/quantize.py``) or as float32. Weights are
read from memory once: batch rows take turns, four, two or one at a time, while a few panels are
in the caches, and a vector of weights is unpacked once for the rows of a turn.

Bounds: integer dot products are exact; blocks are scaled and added up in their order, and the
float32 accumulation over B of them adds at most B * 2**-24 of the sum of magnitudes.
"""

from __future__ import annotations

from numba import float32

from edgerun.formats.trits import DIGITS
from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import fma, load, reduce_add, splat
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.word import float_at, word
from edgerun.kernels.layouts.scale_vectors import vectors_of
from edgerun.kernels.layouts.tile_order import K_STEP
from edgerun.kernels.linear.float_tiles import float_tile
from edgerun.kernels.linear.outputs import block_values, finish, linear_store, row_values
from edgerun.kernels.linear.tiles import PACKED, TRITS, zero_point
from edgerun.kernels.linear.turns import (
    ALONE,
    block_product,
    chunk_panels,
    in_turns,
    row_product,
)

# Arguments that linear kernels share.
OUTPUTS = (
    "rows:i64[1] bias?:f32[n] out:f32[rows, n; out_stride] out_stride n panels step tiles"
    " accumulate"
)
CODES = "codes:u8[panels, tiles, lanes]"
ROW_SCALES = "scales:f32[panels, lanes // 4]"
# Zero points of blocks lie among their scales, or two blocks share a vector
# (``layouts/scale_vectors.py``).
VECTORS_WITH_ZEROS = "blocks + zeros * (2 - zeros) * -(-blocks * bits // 32)"
SCALE_VECTORS = f"{VECTORS_WITH_ZEROS} - halves * (blocks // 2)"
BLOCK_SCALES = f"scales:f32[panels, lanes // 4, {SCALE_VECTORS}]"
ROW_OUTPUTS = f"{OUTPUTS} {CODES} {ROW_SCALES} x_scale:f32[rows] x_sum:i32[rows]"
# Which rows of a batch other kernels do, see ``rows_in_blocks``, and who shares the panels.
TURNS = "tokens least threads"
DENSE_ROWS = 4
X = "x:i8[rows, tiles, 32 // bits; x_stride] x_stride"
ROW = f"{ROW_OUTPUTS} {X}"
BLOCK = (
    f"{OUTPUTS} {CODES} {BLOCK_SCALES} x_scale:f32[rows, blocks] x_sum:i32[rows, blocks] {X} blocks"
)


def row_turns(bits: int, form: str, lanes: int, isa: str) -> Body:
    """A kernel over rows with one scale."""
    values = row_values(zero_point(bits, isa, form))
    product = row_product(bits, form, lanes, isa, ALONE)
    return in_turns(product, linear_store(values, lanes))


@kernel("linear_row", f"{ROW} {TURNS}")
def linear_row(bits: int, lanes: int, isa: str) -> Body:
    """One scale a weight row and one an activation row: int32 over the whole of K.

    ``x`` is int8 ``[rows, x_stride]``, zero from K to the padded K; ``x_scale`` float32
    ``[rows]``; ``x_sum`` int32 ``[rows]``, the sum of the row's codes. The first rows are left
    out if other kernels do them: in blocks of ``tokens``, 0 for none, from ``least`` rows on.
    """
    return row_turns(bits, PACKED, lanes, isa)


@kernel(
    "linear_trits",
    f"{ROW_OUTPUTS} x:i8[rows, tiles, {DIGITS * K_STEP}; x_stride] x_stride {TURNS}",
)
def linear_trits(lanes: int, isa: str) -> Body:
    """``linear_row`` for ternary weights of 1.6 bits, five to a byte (``formats/trits.py``).

    ``codes`` is uint8 ``[panels, tiles, lanes]`` of trits. Fewer bytes cost more instructions:
    that pays where memory, not the core, is the limit.
    """
    return row_turns(2, TRITS, lanes, isa)


@kernel("linear_block", f"{BLOCK} {TURNS}")
def linear_block(bits: int, lanes: int, block: int, isa: str, zeros: int, halves: int) -> Body:
    """One scale per block of K for weights and activations alike.

    ``x`` is int8 ``[rows, x_stride]``; ``x_scale`` float32 ``[rows, blocks]``; ``x_sum`` int32
    ``[rows, blocks]``, the sum of the block's codes; ``scales`` is float32 ``[panels, blocks,
    lanes / 4]``, with what ``zeros`` says (``layouts/zero_kinds.py``); with ``halves`` it is
    float16. The first rows are left out if other kernels do them, as in ``linear_row``.
    """
    product = block_product(bits, lanes, block, isa, zeros, halves, ALONE)
    return in_turns(product, linear_store(block_values, lanes))


@kernel(
    "linear_float",
    f"{OUTPUTS} {CODES} scales:f32[panels, lanes // 4, {VECTORS_WITH_ZEROS}]"
    " x:f32[rows, tiles, 32 // bits; x_stride] x_stride blocks threads",
)
def linear_float(bits: int, lanes: int, block: int, zeros: int) -> Body:
    """Weights with block scales, activations in float32 ``[rows, x_stride]``; no rounding of x."""
    floats, scale_vectors = lanes // 4, vectors_of(bits, zeros, 0)

    def body(a: Arguments, chunk: int) -> None:
        tiles, blocks = a.tiles, a.blocks
        begin, end = chunk_panels(chunk, a.panels, a.step, a.threads)
        sums = scratch(lanes)
        for panel in range(begin, end):
            w = a.codes + panel * tiles * lanes
            scales, n = a.scales + panel * scale_vectors(blocks) * lanes, panel * floats
            for row in range(word(a.rows, 0)):
                x = a.x + row * a.x_stride * 4
                float_tile(w, x, scales, blocks, sums, bits, lanes, block, zeros)
                for r in range(min(floats, a.n - n)):
                    finish(a, row, n + r, float_at(sums, r))

    return body


@kernel(
    "linear_dense",
    OUTPUTS + " codes:f32[n, tiles, width] x:f32[rows, tiles, width; x_stride] x_stride threads",
)
def linear_dense(width: int) -> Body:
    """float32 weights ``[N, tiles * width]`` (K padded with zeros), float32 activations.

    A panel is four rows, which are read side by side: a sum waits for its last addition.
    """

    def body(a: Arguments, chunk: int) -> None:
        row_bytes = a.tiles * width * 4
        begin, end = chunk_panels(chunk, a.panels, a.step, a.threads)
        for row in range(word(a.rows, 0)):
            x = a.x + row * a.x_stride * 4
            for n in range(begin * DENSE_ROWS, min(end * DENSE_ROWS, a.n), DENSE_ROWS):
                first = a.codes + n * row_bytes
                second = first + min(1, a.n - 1 - n) * row_bytes
                third = first + min(2, a.n - 1 - n) * row_bytes
                fourth = first + min(3, a.n - 1 - n) * row_bytes
                zero = splat(float32(0), "f32", width)
                t0, t1, t2, t3 = zero, zero, zero, zero
                for at in range(0, row_bytes, width * 4):
                    values = load(x + at, "f32", width)
                    t0 = fma(load(first + at, "f32", width), values, t0)
                    t1 = fma(load(second + at, "f32", width), values, t1)
                    t2 = fma(load(third + at, "f32", width), values, t2)
                    t3 = fma(load(fourth + at, "f32", width), values, t3)
                finish(a, row, n, reduce_add(t0))
                finish(a, row, n + 1, reduce_add(t1))
                finish(a, row, n + 2, reduce_add(t2))
                finish(a, row, n + 3, reduce_add(t3))

    return body
