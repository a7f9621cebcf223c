"""The kernel that rounds rows to int8, as ``kernels/pointwise/quantize.py`` does, to the bit."""

from __future__ import annotations

from numba import cuda, float32, int32

from edgerun.offload.cuda.arithmetic import divide, dot4, multiply, round_even
from edgerun.offload.cuda.forms import THREADS

MIN_ABSMAX, SMALLEST_NORMAL = float32(1e-5), float32(1.1754944e-38)
ONES = 0x01010101
TOGETHER = 8  # elements that a thread asks for before it needs the first


@cuda.jit(device=True, inline="always")
def _larger(top, value):  # type: ignore[no-untyped-def]
    """The larger one; NaN if one is."""
    return top if top >= value or top != top else value


@cuda.jit(device=True, inline="always")
def _largest(x, row, first, last, step):  # type: ignore[no-untyped-def]
    """The largest magnitude of some elements of a row; NaN if one is."""
    top = float32(0)
    few = cuda.local.array(TOGETHER, float32)
    together = first
    while together + (TOGETHER - 1) * step < last:
        for n in range(TOGETHER):
            few[n] = abs(x[row, together + n * step])
        for n in range(TOGETHER):
            top = _larger(top, few[n])
        together += TOGETHER * step
    for place in range(together, last, step):
        top = _larger(top, abs(x[row, place]))
    return top


@cuda.jit(device=True, inline="always")
def _rounded_word(x, row, place, width, factor):  # type: ignore[no-untyped-def]
    """Four codes in a word, the first in its lowest byte."""
    packed = int32(0)
    for byte in range(4):
        if place + byte < width:
            code = int32(round_even(multiply(x[row, place + byte], factor)))
            packed |= (code & int32(255)) << int32(8 * byte)
    return packed


def quantise(x, width, codes, scales, sums, block, blocks, by_row):  # type: ignore[no-untyped-def]
    """Rounds a row to int8, with a scale a block or the row's in every block.

    Thread blocks ``(rows,)`` of up to ``THREADS``. ``x`` is float32 ``[rows, >= width]``; ``codes``
    int32 ``[rows, blocks * block / 4]``, zero behind the width; ``scales`` float32 and ``sums`` of
    codes int32 ``[rows, blocks]``.
    """
    row, lane, lanes = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    shared = cuda.shared.array(THREADS, float32)
    top = float32(0)
    if by_row:
        shared[lane] = _largest(x, row, lane, width, lanes)
        cuda.syncthreads()
        for other in range(lanes):
            top = _larger(top, shared[other])
    factor = divide(float32(127), _larger(top, MIN_ABSMAX))
    scale = divide(float32(1), factor)
    for index in range(lane, blocks, lanes):
        first = index * block
        if not by_row:
            scale = divide(_largest(x, row, first, min(first + block, width), 1), float32(127))
            factor = float32(0)
            if scale >= SMALLEST_NORMAL:
                factor = divide(float32(1), scale)
        total = int32(0)
        for word in range(first // 4, (first + block) // 4):
            packed = _rounded_word(x, row, 4 * word, width, factor)
            codes[row, word] = packed
            total = dot4(packed, int32(ONES), total)
        scales[row, index] = scale
        sums[row, index] = total
