"""What linear kernels do with their sums: scales, bias, residual, and a gate.

Sums of a tile lie in memory as ``[batch rows, vectors, floats]``; each vector belongs to a panel of
weight rows. Where several matrices are multiplied side by side, all vectors of the first come
before those of the second.
"""

from __future__ import annotations

from typing import Any

from numba import int32, njit

from edgerun.kernels.jit.declare import Arguments
from edgerun.kernels.lang.simd import cast, load, splat, store
from edgerun.kernels.lang.word import float_at, int_at, set_float


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


def row_values(middle: int) -> Any:
    """The function that scales int32 sums of rows with one scale.

    ``middle`` is what codes are above the weights they stand for.
    """

    @njit(inline="always")
    def values(a, row, n, scales, sums, lanes):  # type: ignore[no-untyped-def]
        offset = middle * int_at(a.x_sum, row)
        total = load(sums, "i32", lanes) - splat(int32(offset), "i32", lanes)
        value = cast(total, "f32") * splat(float_at(a.x_scale, row), "f32", lanes)
        return value * load(scales + n * 4, "f32", lanes)

    return values


@njit(inline="always")
def block_values(a, row, n, scales, sums, lanes):  # type: ignore[no-untyped-def]
    """Sums that are scaled already, block by block."""
    return load(sums, "f32", lanes)


def linear_store(values: Any, lanes: int, put: Any = store) -> Any:
    """The function that stores ``sums[count, vectors, floats]`` of a tile.

    ``values(a, row, n, scales, sums, lanes)`` makes outputs of sums. They belong to batch rows
    from ``row`` on and to panels from ``panel`` on, ``apart`` from each other; those more than
    ``last`` further are none. ``vectors`` is its last argument. ``put`` stores whole vectors.
    """

    @njit(inline="always")
    def value_at(a, row, n, sums, to_up, width):  # type: ignore[no-untyped-def]
        value = values(a, row, n, a.scales, sums, width)
        if a.bias != 0:
            value = value + load(a.bias + n * 4, "f32", width)
        if a.accumulate != 0:
            value = value + load(a.out + (row * a.out_stride + n) * 4, "f32", width)
        return value

    return _each_panel(value_at, lanes, 1, put)


def gated_store(values: Any, combine: Any, lanes: int, matrices: int, put: Any = store) -> Any:
    """The function that stores ``combine(gate, up)`` of the sums of two matrices likewise.

    With one of the ``matrices`` alone its outputs are both.
    """

    @njit(inline="always")
    def value_at(a, row, n, sums, to_up, width):  # type: ignore[no-untyped-def]
        gate = values(a, row, n, a.scales, sums, width)
        if a.bias != 0:
            gate = gate + load(a.bias + n * 4, "f32", width)
        if matrices == 1:
            return combine(gate, gate)
        up = values(a, row, n, a.up_scales, sums + to_up, width)
        if a.up_bias != 0:
            up = up + load(a.up_bias + n * 4, "f32", width)
        return combine(gate, up)

    return _each_panel(value_at, lanes, matrices, put)


def _each_panel(value_at: Any, lanes: int, matrices: int, put: Any) -> Any:
    """The loops over rows and panels; of a panel that is cut off, over its outputs.

    A function of its own for tiles of any number of vectors: to compile it into each of them took
    half of the time that a kernel took.
    """
    floats = lanes // 4

    @njit
    def store_rows(a, row, count, panel, apart, last, sums, vectors):  # type: ignore[no-untyped-def]
        panels = vectors // matrices
        for t in range(row, row + count):
            for v in range(panels):
                n, at = (panel + v * apart) * floats, sums + v * lanes
                place = a.out + (t * a.out_stride + n) * 4
                if v * apart <= last and n + floats <= a.n:
                    put(place, value_at(a, t, n, at, panels * lanes, floats))
                elif v * apart <= last:
                    for r in range(a.n - n):
                        value = value_at(a, t, n + r, at + r * 4, panels * lanes, 1)
                        store(place + r * 4, value)
            sums += vectors * lanes

    return store_rows
