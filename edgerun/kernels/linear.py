"""Linear layers over low-bit weights in the stream layout (``layout.py``).

All kernels compute ``out[t, n] = sum_k x[t, k] * w[n, k] (+ bias[n]) (+ out[t, n])`` for the
rows of a batch; a chunk is ``step`` groups of four weight rows, for all batch rows. Activations
arrive as int8 with scales (``quantize.py``) or as float32.

Bounds: integer dot products are exact; the float32 accumulation over B blocks adds at most
B * 2**-24 of the sum of magnitudes.
"""

from __future__ import annotations

from numba import float32, int32, njit

from edgerun.kernels.dot import dot
from edgerun.kernels.machine import prefetch
from edgerun.kernels.registry import Body, kernel
from edgerun.kernels.simd import (
    cast,
    fma,
    lane,
    load,
    load_splat,
    mask_bits,
    reduce_add,
    shift_by,
    shift_right,
    splat,
)
from edgerun.kernels.word import float_at, int_at, set_float, word

VECTORS_AHEAD = 32  # how far ahead of use a weight stream is prefetched

# Arguments that all linear kernels share, so that ``_finish`` can read them.
ROWS, CODES, SCALES, BIAS, OUT, N, GROUPS, STEP, TILES, OUT_STRIDE, ACCUMULATE = range(11)
COMMON = "rows codes scales bias out n groups step tiles out_stride accumulate "
X, X_STRIDE, X_SCALE, X_SUM = range(11, 15)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _finish(a: int, row: int, n: int, value: float) -> None:
    """Adds bias and residual and stores one output, unless ``n`` is padding."""
    if n < word(a, N):
        index = row * word(a, OUT_STRIDE) + n
        if word(a, BIAS) != 0:
            value += float_at(word(a, BIAS), n)
        if word(a, ACCUMULATE) != 0:
            value += float_at(word(a, OUT), index)
        set_float(word(a, OUT), index, value)


@kernel("linear_row", COMMON + "x x_stride x_scale x_sum")
def linear_row(bits: int, lanes: int, isa: str) -> Body:
    """One scale a weight row and one an activation row: int32 over the whole of K.

    ``x`` is int8 ``[rows, x_stride]``, zero from K to the padded K; ``x_scale`` float32
    ``[rows]``; ``x_sum`` int32 ``[rows]``, the sum of the row's codes.
    """
    planes = 8 // bits
    quarter = lanes // 4
    low = (1 << bits) - 1
    shift = bits % 8
    middle = 0 if bits == 8 else 1 << (bits - 1)
    ahead = lanes * VECTORS_AHEAD

    def body(a: int, chunk: int) -> None:
        tiles, scales = word(a, TILES), word(a, SCALES)
        last = min(word(a, GROUPS), (chunk + 1) * word(a, STEP))
        for group in range(chunk * word(a, STEP), last):
            for row in range(word(word(a, ROWS), 0)):
                x = word(a, X) + row * word(a, X_STRIDE)
                w = word(a, CODES) + group * tiles * 4 * lanes
                s0 = splat(int32(0), "i32", quarter)
                s1 = s0
                s2 = s0
                s3 = s0
                for _tile in range(tiles):
                    prefetch(w + ahead)
                    prefetch(w + ahead + 2 * lanes)
                    c0 = load(w, "u8", lanes)
                    c1 = load(w + lanes, "u8", lanes)
                    c2 = load(w + 2 * lanes, "u8", lanes)
                    c3 = load(w + 3 * lanes, "u8", lanes)
                    for _plane in range(planes):
                        v = load(x, "i8", lanes)
                        s0 = dot(s0, mask_bits(c0, low), v, bits, isa)
                        s1 = dot(s1, mask_bits(c1, low), v, bits, isa)
                        s2 = dot(s2, mask_bits(c2, low), v, bits, isa)
                        s3 = dot(s3, mask_bits(c3, low), v, bits, isa)
                        c0 = shift_right(c0, shift)
                        c1 = shift_right(c1, shift)
                        c2 = shift_right(c2, shift)
                        c3 = shift_right(c3, shift)
                        x += lanes
                    w += 4 * lanes
                offset = middle * int_at(word(a, X_SUM), row)
                factor = float_at(word(a, X_SCALE), row)
                n = group * 4
                t0 = float32(reduce_add(s0) - offset) * factor
                t1 = float32(reduce_add(s1) - offset) * factor
                t2 = float32(reduce_add(s2) - offset) * factor
                t3 = float32(reduce_add(s3) - offset) * factor
                _finish(a, row, n, t0 * float_at(scales, n))
                _finish(a, row, n + 1, t1 * float_at(scales, n + 1))
                _finish(a, row, n + 2, t2 * float_at(scales, n + 2))
                _finish(a, row, n + 3, t3 * float_at(scales, n + 3))

    return body


@kernel("linear_block", COMMON + "x x_stride x_scale x_sum blocks")
def linear_block(bits: int, lanes: int, block: int, isa: str) -> Body:
    """One scale per block of K for weights and activations alike.

    ``x`` is int8 ``[rows, x_stride]``; ``x_scale`` float32 ``[rows, blocks]``; ``x_sum`` float32
    ``[rows, blocks]``, the sum of the block's codes times its scale. ``block >= lanes``.
    """
    planes = 8 // bits
    quarter = lanes // 4
    low = (1 << bits) - 1
    shift = bits % 8
    middle = float32(0 if bits == 8 else 1 << (bits - 1))
    ahead = lanes * VECTORS_AHEAD
    planes_a_block = block // lanes
    tiles_a_block = max(1, planes_a_block // planes)
    blocks_a_tile = max(1, planes // planes_a_block)
    planes_at_once = min(planes, planes_a_block)

    def body(a: int, chunk: int) -> None:
        tiles, blocks = word(a, TILES), word(a, 15)
        last = min(word(a, GROUPS), (chunk + 1) * word(a, STEP))
        for group in range(chunk * word(a, STEP), last):
            for row in range(word(word(a, ROWS), 0)):
                x = word(a, X) + row * word(a, X_STRIDE)
                x_scale = word(a, X_SCALE) + row * blocks * 4
                x_sum = word(a, X_SUM) + row * blocks * 4
                scales = word(a, SCALES) + group * blocks * 16
                w = word(a, CODES) + group * tiles * 4 * lanes
                f0 = splat(float32(0), "f32", quarter)
                f1 = f0
                f2 = f0
                f3 = f0
                s0 = splat(int32(0), "i32", quarter)
                s1 = s0
                s2 = s0
                s3 = s0
                zero = splat(float32(0), "f32", 4)
                for tile in range(tiles):
                    prefetch(w + ahead)
                    prefetch(w + ahead + 2 * lanes)
                    c0 = load(w, "u8", lanes)
                    c1 = load(w + lanes, "u8", lanes)
                    c2 = load(w + 2 * lanes, "u8", lanes)
                    c3 = load(w + 3 * lanes, "u8", lanes)
                    for _block in range(blocks_a_tile):
                        for _plane in range(planes_at_once):
                            v = load(x, "i8", lanes)
                            s0 = dot(s0, mask_bits(c0, low), v, bits, isa)
                            s1 = dot(s1, mask_bits(c1, low), v, bits, isa)
                            s2 = dot(s2, mask_bits(c2, low), v, bits, isa)
                            s3 = dot(s3, mask_bits(c3, low), v, bits, isa)
                            c0 = shift_right(c0, shift)
                            c1 = shift_right(c1, shift)
                            c2 = shift_right(c2, shift)
                            c3 = shift_right(c3, shift)
                            x += lanes
                        if (tile + 1) % tiles_a_block == 0:
                            xs = load_splat(x_scale, quarter)
                            f0 = fma(cast(s0, "f32") * xs, load_splat(scales, quarter), f0)
                            f1 = fma(cast(s1, "f32") * xs, load_splat(scales + 4, quarter), f1)
                            f2 = fma(cast(s2, "f32") * xs, load_splat(scales + 8, quarter), f2)
                            f3 = fma(cast(s3, "f32") * xs, load_splat(scales + 12, quarter), f3)
                            if middle != 0:
                                zero = fma(load(scales, "f32", 4), load_splat(x_sum, 4), zero)
                            s0 = splat(int32(0), "i32", quarter)
                            s1 = s0
                            s2 = s0
                            s3 = s0
                            x_scale += 4
                            x_sum += 4
                            scales += 16
                    w += 4 * lanes
                n = group * 4
                _finish(a, row, n, reduce_add(f0) - middle * lane(zero, 0))
                _finish(a, row, n + 1, reduce_add(f1) - middle * lane(zero, 1))
                _finish(a, row, n + 2, reduce_add(f2) - middle * lane(zero, 2))
                _finish(a, row, n + 3, reduce_add(f3) - middle * lane(zero, 3))

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
                group, member = n // 4, n % 4
                x = word(a, X) + row * word(a, X_STRIDE) * 4
                w = word(a, CODES) + (group * tiles * 4 + member) * lanes
                scales = word(a, SCALES) + group * blocks * 16 + member * 4
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
                            scales += 16
                    w += 4 * lanes
                _finish(a, row, n, reduce_add(total))

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
                _finish(a, row, n, reduce_add(total))

    return body
