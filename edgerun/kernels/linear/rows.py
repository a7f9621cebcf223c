"""Linear layers over low-bit weights in the stream layout (``layout.py``).

All kernels compute ``out[t, n] = sum_k x[t, k] * w[n, k] (+ bias[n]) (+ out[t, n])`` for the
rows of a batch; a chunk is ``step`` groups of four weight rows, for all batch rows. Activations
arrive as int8 with scales (``pointwise/quantize.py``) or as float32. Batch rows are taken
``TOKENS`` at a time, so that a weight is unpacked once for several of them; the rest one by one,
which is what decoding does.

Bounds: integer dot products are exact; blocks are scaled and added up in their order, and the
float32 accumulation over B of them adds at most B * 2**-24 of the sum of magnitudes.
"""

from __future__ import annotations

from numba import float32, njit

from edgerun.kernels.jit.registry import Body, kernel
from edgerun.kernels.lang.simd import (
    cast,
    fma,
    load,
    load_splat,
    mask_bits,
    reduce_add,
    shift_by,
    splat,
    store,
)
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.word import float_at, int_at, set_float, word
from edgerun.kernels.linear.block_tiles import block_tile
from edgerun.kernels.linear.row_tiles import row_tile
from edgerun.kernels.linear.token_tiles import token_tile

TOKENS = 4
AT_ONCE = 64  # groups whose sums for one token are scaled together
EIGHT = 8
WIDE = 64  # bytes of a vector on machines with registers for 4 x 4 sums

# Arguments that all linear kernels share, so that ``finish`` can read them.
ROWS, CODES, SCALES, BIAS, OUT, N, GROUPS, STEP, TILES, OUT_STRIDE, ACCUMULATE = range(11)
COMMON = "rows codes scales bias out n groups step tiles out_stride accumulate "
X, X_STRIDE, X_SCALE, X_SUM, BLOCKS = range(11, 16)
LOOKUP = 15  # of linear_row


@njit
def finish(a: int, row: int, n: int, value: float) -> None:
    """Adds bias and residual and stores one output, unless ``n`` is padding."""
    if n < word(a, N):
        index = row * word(a, OUT_STRIDE) + n
        if word(a, BIAS) != 0:
            value += float_at(word(a, BIAS), n)
        if word(a, ACCUMULATE) != 0:
            value += float_at(word(a, OUT), index)
        set_float(word(a, OUT), index, value)


@njit
def store_integers(a, row, n, apart, sums, tokens, rows, middle):  # type: ignore[no-untyped-def]
    """Scales and stores int32 ``sums [tokens, rows]``; ``middle`` is the codes' zero point.

    The rows are ``n``, ``n + apart``, ``n + 2 * apart``, ...
    """
    for t in range(tokens):
        offset = middle * int_at(word(a, X_SUM), row + t)
        factor = float_at(word(a, X_SCALE), row + t)
        for r in range(rows):
            total = float32(int_at(sums, t * rows + r) - offset) * factor
            scale = float_at(word(a, SCALES), n + r * apart)
            finish(a, row + t, n + r * apart, total * scale)


@njit
def store_neighbours(a, row, n, sums, count, middle):  # type: ignore[no-untyped-def]
    """``store_integers`` of int32 ``sums [count]`` of one token and the rows from ``n`` on."""
    offset = middle * int_at(word(a, X_SUM), row)
    factor, scales = float_at(word(a, X_SCALE), row), word(a, SCALES) + n * 4
    whole = max(0, min(count, word(a, N) - n)) // EIGHT * EIGHT
    target = word(a, OUT) + (row * word(a, OUT_STRIDE) + n) * 4
    for index in range(0, whole * 4, EIGHT * 4):
        value = cast(load(sums + index, "i32", EIGHT) - splat(offset, "i32", EIGHT), "f32")
        value = value * splat(factor, "f32", EIGHT) * load(scales + index, "f32", EIGHT)
        if word(a, BIAS) != 0:
            value = value + load(word(a, BIAS) + n * 4 + index, "f32", EIGHT)
        if word(a, ACCUMULATE) != 0:
            value = value + load(target + index, "f32", EIGHT)
        store(target + index, value)
    for index in range(whole, count):
        total = float32(int_at(sums, index) - offset) * factor
        finish(a, row, n + index, total * float_at(scales, index))


@njit
def _store_floats(a, row, n, apart, sums, tokens, rows):  # type: ignore[no-untyped-def]
    """Stores float32 ``sums [tokens, rows]``."""
    for t in range(tokens):
        for r in range(rows):
            finish(a, row + t, n + r * apart, float_at(sums, t * rows + r))


@njit(inline="always")
def lookup_rows(rows, tokens):  # type: ignore[no-untyped-def]
    """How many of a batch's rows are done in blocks of ``tokens`` by lookup; 0 means none.

    A block that is not half full costs more than row by row. A negative number stands for blocks
    of any size: all rows, if there are as many as its magnitude.
    """
    if tokens < 0:
        return rows if rows >= -tokens else 0
    return min(rows, (rows + tokens // 2) // max(1, tokens) * tokens)


@kernel("linear_row", COMMON + "x x_stride x_scale x_sum lookup")
def linear_row(bits: int, lanes: int, isa: str) -> Body:
    """One scale a weight row and one an activation row: int32 over the whole of K.

    ``x`` is int8 ``[rows, x_stride]``, zero from K to the padded K; ``x_scale`` float32
    ``[rows]``; ``x_sum`` int32 ``[rows]``, the sum of the row's codes. The first rows are left
    out if ``lookup.py`` does them: ``lookup`` is its number of tokens a block, or 0.
    """
    middle = 0 if bits == 8 else 1 << (bits - 1)
    side = 4 if lanes == WIDE else 2
    room, sums_apart = 4 * AT_ONCE * 4, AT_ONCE * 4

    def body(a: int, chunk: int) -> None:
        tiles, stride, rows = word(a, TILES), word(a, X_STRIDE), word(word(a, ROWS), 0)
        first = chunk * word(a, STEP)
        apart = min(word(a, GROUPS), first + word(a, STEP)) - first
        far, last = apart * tiles * lanes, first * 4 + apart
        sums = scratch(room)
        row = lookup_rows(rows, word(a, LOOKUP))
        while row + TOKENS <= rows:
            x = word(a, X) + row * stride
            for n in range(first * 4, last):
                for r in range(0, 4, side):
                    w = word(a, CODES) + n * tiles * lanes + r * far
                    row_tile(w, far, x, stride, tiles, sums, side, TOKENS, bits, lanes, isa)
                    store_integers(a, row, n + r * apart, apart, sums, TOKENS, side, middle)
            row += TOKENS
        while row < rows:
            x = word(a, X) + row * stride
            for n in range(first * 4, last, AT_ONCE):
                count = min(AT_ONCE, last - n)
                for index in range(count):
                    w, place = word(a, CODES) + (n + index) * tiles * lanes, sums + index * 4
                    token_tile(w, far, x, tiles, place, sums_apart, bits, lanes, isa)
                for r in range(4):
                    place = sums + r * sums_apart
                    store_neighbours(a, row, n + r * apart, place, count, middle)
            row += 1

    return body


@kernel("linear_block", COMMON + "x x_stride x_scale x_sum blocks lookup")
def linear_block(bits: int, lanes: int, block: int, isa: str) -> Body:
    """One scale per block of K for weights and activations alike.

    ``x`` is int8 ``[rows, x_stride]``; ``x_scale`` float32 ``[rows, blocks]``; ``x_sum`` int32
    ``[rows, blocks]``, the sum of the block's codes. ``block >= lanes``. The first rows are left
    out if ``gemm.py`` does them, as in ``linear_row``.
    """
    side = 4 if lanes == WIDE else 2

    def body(a: int, chunk: int) -> None:
        tiles, stride, rows = word(a, TILES), word(a, X_STRIDE), word(word(a, ROWS), 0)
        blocks = word(a, BLOCKS)
        first = chunk * word(a, STEP)
        apart = min(word(a, GROUPS), first + word(a, STEP)) - first
        far, scales_far = apart * tiles * lanes, apart * blocks * 4
        sums = scratch(64)
        row = lookup_rows(rows, word(a, BLOCKS + 1))
        while row < rows:
            x = word(a, X) + row * stride
            xs, xm = word(a, X_SCALE) + row * blocks * 4, word(a, X_SUM) + row * blocks * 4
            many = row + TOKENS <= rows
            for n in range(first * 4, first * 4 + apart):
                w, scales = word(a, CODES) + n * tiles * lanes, word(a, SCALES) + n * blocks * 4
                if many:
                    for r in range(0, 4, side):
                        block_tile(
                            w + r * far,
                            far,
                            x,
                            stride,
                            scales + r * scales_far,
                            scales_far,
                            xs,
                            xm,
                            blocks,
                            sums,
                            side,
                            TOKENS,
                            bits,
                            lanes,
                            block,
                            isa,
                        )
                        _store_floats(a, row, n + r * apart, apart, sums, TOKENS, side)
                else:
                    block_tile(
                        w,
                        far,
                        x,
                        stride,
                        scales,
                        scales_far,
                        xs,
                        xm,
                        blocks,
                        sums,
                        4,
                        1,
                        bits,
                        lanes,
                        block,
                        isa,
                    )
                    _store_floats(a, row, n, apart, sums, 1, 4)
            row += TOKENS if many else 1

    return body


@kernel("linear_float", COMMON + "x x_stride blocks")
def linear_float(bits: int, lanes: int, block: int) -> Body:
    """Weights with block scales, activations in float32 ``[rows, x_stride]``; no rounding of x."""
    planes = 8 // bits
    low = (1 << bits) - 1
    middle = float32(1 << (bits - 1))
    pieces = lanes // 8
    planes_a_block = block // lanes
    tiles_a_block = max(1, planes_a_block // planes)
    blocks_a_tile = max(1, planes // planes_a_block)
    planes_at_once = min(planes, planes_a_block)

    def body(a: int, chunk: int) -> None:
        tiles, blocks = word(a, TILES), word(a, 13)
        last = min(word(a, GROUPS), (chunk + 1) * word(a, STEP))
        for row in range(word(word(a, ROWS), 0)):
            for n in range(chunk * word(a, STEP) * 4, last * 4):
                x = word(a, X) + row * word(a, X_STRIDE) * 4
                w = word(a, CODES) + n * tiles * lanes
                scales = word(a, SCALES) + n * blocks * 4
                zero_point = splat(middle, "f32", 8)
                total = splat(float32(0), "f32", 8)
                part = splat(float32(0), "f32", 8)
                for tile in range(tiles):
                    for one in range(blocks_a_tile):
                        for plane in range(planes_at_once):
                            bit = (one * planes_at_once + plane) * bits
                            for piece in range(pieces):
                                codes = load(w + piece * 8, "u8", 8)
                                values = cast(mask_bits(shift_by(codes, bit), low), "f32")
                                part = fma(values - zero_point, load(x, "f32", 8), part)
                                x += 32
                        if (tile + 1) % tiles_a_block == 0:
                            total = fma(part, load_splat(scales, 8), total)
                            part = splat(float32(0), "f32", 8)
                            scales += 4
                    w += lanes
                finish(a, row, n, reduce_add(total))

    return body


@kernel("linear_dense", COMMON + "x x_stride")
def linear_dense(width: int) -> Body:
    """float32 weights ``[N, tiles * width]`` (K padded with zeros), float32 activations."""

    def body(a: int, chunk: int) -> None:
        tiles = word(a, TILES)
        last = min(word(a, GROUPS), (chunk + 1) * word(a, STEP)) * 4
        for row in range(word(word(a, ROWS), 0)):
            for n in range(chunk * word(a, STEP) * 4, min(last, word(a, N))):
                x = word(a, X) + row * word(a, X_STRIDE) * 4
                w = word(a, CODES) + n * tiles * width * 4
                total = splat(float32(0), "f32", width)
                for _tile in range(tiles):
                    total = fma(load(w, "f32", width), load(x, "f32", width), total)
                    w += width * 4
                    x += width * 4
                finish(a, row, n, reduce_add(total))

    return body
