"""Kernels of a layer of experts: rows are rounded, multiplied, gated.

Weights lie as the bundle has them (``formats/base.py``): unsigned codes of 2 or 4 bits, the first
in the lowest bits, and a float32 scale a block. Codes are read as words of 32 bits and masked,
so that byte ``b`` of plane ``j`` is code ``b * planes + j`` of the word; activations are
rearranged in the same way when they are rounded, four of them in a word. Sums of a block are exact
int32; then every lane of a warp adds up its blocks in float32, and the lanes are added in their
order, so that a result does not depend on other rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba import cuda, float32, int32

LANES = 32
OUTPUTS = 4  # rows of the weight in a thread block, a warp each
TILE = 8  # rows of activations for which codes are read once
WORD_CODES = {2: 16, 4: 8}  # by bits of a code
# Added to a float32 below 2**22 and taken away, it leaves the nearest even integer.
ROUNDS = float32(3 << 22)


@dataclass(frozen=True)
class Kernels:
    """What ``make_kernels`` makes; plain functions until ``cuda.jit`` takes them.

    Attributes:
        quantise: ``(x, codes, scales, sums, block, by_row)``; thread blocks ``(rows, 1)`` of
            ``LANES`` threads. ``x`` is float32 ``[rows, K]``; ``codes`` int32 ``[rows, K / 4]``,
            ``scales`` float32 and ``sums`` int32 ``[rows, K / block]``.
        product: ``(weights, weight_scales, codes, scales, sums, out)``; thread blocks
            ``(N / OUTPUTS, rows / TILE)``, rounded up, of ``(LANES, OUTPUTS)`` threads. ``weights``
            is int32 ``[N, K / block, words]``, ``weight_scales`` float32 ``[N, K / block]``,
            ``out`` float32 ``[rows, N]``. Zero points are in the middle.
        gate: ``(gate, up)``, float32 ``[rows, N]`` each; thread blocks ``(rows,)`` of ``LANES``
            threads. ``gate`` becomes ``silu(gate) * up``.
    """

    quantise: Callable[..., None]
    product: Callable[..., None]
    gate: Callable[..., None]


def make_kernels(bits: int, dot4: Any) -> Kernels:
    """The kernels for weights of some bits.

    Args:
        bits: of a code, 2 (ternary among them) or 4.
        dot4: one of the dot products of ``dots.py``.
    """
    return Kernels(_quantise(bits), _product(bits, dot4), _gate)


def _quantise(bits: int) -> Callable[..., None]:
    planes, in_word = 8 // bits, WORD_CODES[bits]
    absmax_of_row = _absmax_of_row()

    def quantise(x, codes, scales, sums, block, by_row):  # type: ignore[no-untyped-def]
        """Rounds a row to int8, with a scale a block, or the row's in every block.

        As ``ops/linear.py`` defines it: ``quantize_block`` and ``quantize_row``.
        """
        row, lane, k = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
        factor_of_row = float32(0)
        if by_row:
            factor_of_row = float32(127) / max(absmax_of_row(x, row), float32(1e-5))
        for index in range(lane, k // block, LANES):
            factor, scale = factor_of_row, float32(0)
            if by_row:
                scale = float32(1) / factor
            else:
                largest = float32(0)
                for place in range(index * block, (index + 1) * block):
                    largest = max(largest, abs(x[row, place]))
                scale = largest / float32(127)
                factor = float32(1) / scale if scale > 0 else float32(0)
            total = int32(0)
            for word in range(block // 4):
                packed = int32(0)
                first = index * block + word // planes * in_word + word % planes
                for byte in range(4):
                    value = x[row, first + byte * planes] * factor
                    code = int32((value + ROUNDS) - ROUNDS)
                    total += code
                    packed |= (code & int32(255)) << int32(8 * byte)
                codes[row, index * (block // 4) + word] = packed
            scales[row, index] = scale
            sums[row, index] = total

    return quantise


def _absmax_of_row() -> Any:
    @cuda.jit(device=True, inline="always")
    def absmax_of_row(x, row):  # type: ignore[no-untyped-def]
        """The largest magnitude of a row, the same for all threads of a block."""
        lane = cuda.threadIdx.x
        partial = cuda.shared.array(LANES, float32)
        largest = float32(0)
        for place in range(lane, x.shape[1], LANES):
            largest = max(largest, abs(x[row, place]))
        partial[lane] = largest
        cuda.syncthreads()
        for other in range(LANES):
            largest = max(largest, partial[other])
        return largest

    return absmax_of_row


def _product(bits: int, dot4: Any) -> Callable[..., None]:
    zero, add_block = 1 << (bits - 1), _add_block(bits, dot4)

    def product(weights, weight_scales, codes, scales, sums, out):  # type: ignore[no-untyped-def]
        """A tile of rows times some rows of a weight."""
        lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
        output, first = cuda.blockIdx.x * OUTPUTS + warp, cuda.blockIdx.y * TILE
        rows = min(TILE, out.shape[0] - first)
        partial = cuda.shared.array((OUTPUTS, TILE, LANES), float32)
        for row in range(TILE):
            partial[warp, row, lane] = float32(0)
        if output < weights.shape[0]:
            for block in range(lane, weights.shape[1], LANES):
                totals = cuda.local.array(TILE, int32)
                for row in range(rows):
                    totals[row] = -zero * sums[first + row, block]
                add_block(weights, codes, totals, output, block, first, rows)
                for row in range(rows):
                    factor = weight_scales[output, block] * scales[first + row, block]
                    partial[warp, row, lane] += float32(totals[row]) * factor
        cuda.syncthreads()
        if lane < rows and output < weights.shape[0]:
            total = float32(0)
            for other in range(LANES):
                total += partial[warp, lane, other]
            out[first + lane, output] = total

    return product


def _add_block(bits: int, dot4: Any) -> Any:
    planes = 8 // bits
    mask = sum(((1 << bits) - 1) << place for place in range(0, 32, 8))

    @cuda.jit(device=True, inline="always")
    def add_block(weights, codes, totals, output, block, first, rows):  # type: ignore[no-untyped-def]
        """Adds the products of a block of a weight's row to the totals of some rows."""
        words = weights.shape[2]
        for word in range(words):
            stored, at = weights[output, block, word], (block * words + word) * planes
            for plane in range(planes):
                four = (stored >> int32(plane * bits)) & int32(mask)
                for row in range(rows):
                    totals[row] = dot4(four, codes[first + row, at + plane], totals[row])

    return add_block


def _gate(gate, up):  # type: ignore[no-untyped-def]
    """``silu(gate) * up`` in place."""
    row = cuda.blockIdx.x
    for place in range(cuda.threadIdx.x, gate.shape[1], LANES):
        value = gate[row, place]
        gate[row, place] = value / (float32(1) + float32(math.exp(-value))) * up[row, place]
