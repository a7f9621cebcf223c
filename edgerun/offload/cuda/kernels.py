"""Kernels of a layer of experts: rows are rounded, multiplied, gated.

Weights lie as the processor's kernels have them (``kernels/layouts/stream.py``), so that a slot is
copied as it is: a panel is some rows of a weight, ``height`` of them, and a word of 32 bits in it
has the next codes of one row. A thread block multiplies a panel by a tile of activations that go to
the same expert; a thread has a row of the panel, and of the blocks along K every n-th. There are
kernels for tiles of one row and for those of more.

**Bits.** Sums of products of codes are integers, so their order does not matter. What follows in
float32 is done by one thread for each result, in the order of the processor's kernels
(``kernels/linear/outputs.py``, ``block_tiles.py``, ``pointwise/quantize.py``) and with operations
that round as often: so results have the same bits, unless a row has infinities or is no number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from numba import cuda, float32, int32

from edgerun.activations.registry import ACTIVATIONS
from edgerun.offload.cuda import vectormath
from edgerun.offload.cuda.arithmetic import add, multiply
from edgerun.offload.cuda.forms import BIAS, COUNT, FIRST, ROWS, SLOT, STAGE, TILE, Form
from edgerun.offload.cuda.sums import scaled_sums


@cache  # so that a context loads it once
def make_product(form: Form, tile: int = TILE) -> Callable[..., None]:
    """The kernel ``out = x @ weight.T + bias`` for the second matrix of an expert.

    Thread blocks ``(panels, tiles)`` of ``(height, up to GROUPS)`` threads. Arguments: all
    slots as int32 and as float32, words of a slot, the matrix, ``tiles`` int32 ``[tiles, 3]``, what
    ``quantise`` made, and ``out`` float32 ``[rows, >= N]``.
    """
    sums_of, bias_of, height = scaled_sums(form, tile), _with_bias(form.height), form.height
    stage = STAGE[tile]

    def product(  # type: ignore[no-untyped-def]
        words, floats, slot_words, matrix, tiles, codes, scales, sums, out
    ):
        first, count = tiles[cuda.blockIdx.y, FIRST], tiles[cuda.blockIdx.y, COUNT]
        base = tiles[cuda.blockIdx.y, SLOT] * slot_words
        results = cuda.local.array(tile, float32)
        totals = cuda.shared.array((tile, stage, height), int32)
        factors = cuda.shared.array((tile, stage, height), float32)
        rounded = codes, scales, sums
        sums_of(words, floats, base, matrix, rounded, first, count, totals, factors, results)
        n = cuda.blockIdx.x * height + cuda.threadIdx.x
        if n < matrix[ROWS]:
            for row in range(cuda.threadIdx.y, count, cuda.blockDim.y):
                out[first + row, n] = bias_of(floats, base, matrix, n, results[row])

    return product


@cache
def make_gated(
    gate_form: Form, up_form: Form, activation: str, tile: int = TILE
) -> Callable[..., None]:
    """The kernel ``out = activation(x @ gate.T + bias) * (x @ up.T + bias)``.

    As ``make_product``, with the matrices of gate and up, whose blocks are of one size.
    """
    sums_of_gate, sums_of_up = scaled_sums(gate_form, tile), scaled_sums(up_form, tile)
    height, stage = gate_form.height, STAGE[tile]
    bias_of = _with_bias(height)
    functions = ACTIVATIONS[activation]
    of_gate, of_up = (
        cuda.jit(device=True, inline="always")(each.vector(vectormath))
        for each in (functions, functions.up)
    )

    def gated(  # type: ignore[no-untyped-def]
        words, floats, slot_words, gate, up, tiles, codes, scales, sums, out
    ):
        first, count = tiles[cuda.blockIdx.y, FIRST], tiles[cuda.blockIdx.y, COUNT]
        base = tiles[cuda.blockIdx.y, SLOT] * slot_words
        gates = cuda.local.array(tile, float32)
        ups = cuda.local.array(tile, float32)
        totals = cuda.shared.array((tile, stage, height), int32)
        factors = cuda.shared.array((tile, stage, height), float32)
        rounded = codes, scales, sums
        sums_of_gate(words, floats, base, gate, rounded, first, count, totals, factors, gates)
        sums_of_up(words, floats, base, up, rounded, first, count, totals, factors, ups)
        n = cuda.blockIdx.x * height + cuda.threadIdx.x
        if n < gate[ROWS]:
            for row in range(cuda.threadIdx.y, count, cuda.blockDim.y):
                left = of_gate(bias_of(floats, base, gate, n, gates[row]))
                right = of_up(bias_of(floats, base, up, n, ups[row]))
                out[first + row, n] = multiply(left, right)

    return gated


def _with_bias(height: int) -> Any:
    @cuda.jit(device=True, inline="always")
    def with_bias(floats, base, matrix, n, value):  # type: ignore[no-untyped-def]
        """A result and the bias of its row, if there is one."""
        if matrix[BIAS] >= 0:
            value = add(value, floats[base + matrix[BIAS] + n])
        return value

    return with_bias
