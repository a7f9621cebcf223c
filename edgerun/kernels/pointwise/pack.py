"""Brings activations into tile order (``layouts/tile_order.py``).

Activations of a layer are packed once a batch, by a kernel of their own, for all threads and all
layers that read them; row order stays for kernels of few rows. Experts, whose rows begin anywhere,
pack 32 rows when they need them.
"""

from __future__ import annotations

from typing import Any

from numba import njit, uint8

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import load, splat, store
from edgerun.kernels.lang.tile_registers import SIDE
from edgerun.kernels.lang.word import int_at, set_int, word
from edgerun.kernels.layouts.tile_order import PAIR, TOKENS, depth_of

PADDED_ROWS = "-(-rows // 32) * 32"


def packing(depth: int) -> Any:
    """The function that packs up to 32 rows of ``k`` activations; others become zero."""
    tile_bytes = SIDE * depth

    @njit(inline="always")
    def pack(x, stride, count, k, target):  # type: ignore[no-untyped-def]
        for t in range(TOKENS):
            place = target + t // SIDE * tile_bytes + t % SIDE * depth
            for first in range(0, k, depth):
                codes = splat(uint8(0), "u8", depth)
                if t < count:
                    codes = load(x + t * stride + first, "u8", depth)
                store(place, codes)
                place += PAIR * tile_bytes

    return pack


@njit
def turn_blocks(values, blocks, count, target):  # type: ignore[no-untyped-def]
    """Turns 32-bit numbers of up to 32 rows; others become zero."""
    for index in range(blocks):
        for t in range(TOKENS):
            value = int_at(values, t * blocks + index) if t < count else 0
            set_int(target, index * TOKENS + t, value)


@kernel(
    "pack_row",
    f"rows:i64[1] x:i8[rows, k; x_stride] x_stride k least packed:i8[{PADDED_ROWS}, k]",
)
def pack_row() -> Body:
    """Activations in tile order, for products of rows with one scale; a chunk is 32 rows.

    Nothing is done for a batch of fewer than ``least`` rows, which leaves tiles alone.
    """
    pack = packing(depth_of(0))

    def body(a: Arguments, chunk: int) -> None:
        rows, first = word(a.rows, 0), chunk * TOKENS
        if first < rows and rows >= a.least:
            pack(a.x + first * a.x_stride, a.x_stride, rows - first, a.k, a.packed + first * a.k)

    return body


@kernel(
    "pack_block",
    f"rows:i64[1] x:i8[rows, k; x_stride] x_stride k least packed:i8[{PADDED_ROWS}, k] blocks"
    " x_scale:f32[rows, blocks] x_sum:i32[rows, blocks]"
    f" scale:f32[{PADDED_ROWS}, blocks] sum:i32[{PADDED_ROWS}, blocks]",
)
def pack_block(block: int) -> Body:
    """The same for blocks with scales, which are turned, and so are the sums of activations."""
    pack = packing(depth_of(block))

    def body(a: Arguments, chunk: int) -> None:
        rows, first = word(a.rows, 0), chunk * TOKENS
        if first < rows and rows >= a.least:
            count, at = rows - first, first * a.blocks * 4
            pack(a.x + first * a.x_stride, a.x_stride, count, a.k, a.packed + first * a.k)
            turn_blocks(a.x_scale + at, a.blocks, count, a.scale + at)
            turn_blocks(a.x_sum + at, a.blocks, count, a.sum + at)

    return body
