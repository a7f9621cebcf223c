"""Brings activations into tile order (``layouts/tile_order.py``).

Activations of a layer are packed once a batch, by a kernel of their own, for all threads and all
layers that read them; row order stays for kernels of few rows. Experts, whose rows begin anywhere,
pack 32 rows for tile registers when they need them.
"""

from __future__ import annotations

from typing import Any

from numba import njit, uint8

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import load, splat, store
from edgerun.kernels.lang.word import int_at, set_int, word
from edgerun.kernels.layouts.starts import (
    AS_THEY_ARE,
    Starts,
    starts_of,
    zeros_when_unpacked,
)
from edgerun.kernels.layouts.tile_order import TileOrder, vector_order

PACKED_BYTES = 1024  # of each row at a time: what they become stays in the first cache meanwhile
PADDED_ROWS = "-(-rows // (side * pair)) * side * pair"


def packing(order: TileOrder) -> Any:
    """The function that packs as many rows of ``k`` activations as lie side by side.

    Those beyond ``count`` become zero.
    """
    side, depth, tokens = order.side, order.depth, order.tokens
    tile_bytes, step_bytes = side * depth, tokens * depth

    @njit(inline="always")
    def pack(x, stride, count, k, target):  # type: ignore[no-untyped-def]
        for begin in range(0, k, PACKED_BYTES):
            end = min(begin + PACKED_BYTES, k)
            for t in range(tokens):
                place = target + begin // depth * step_bytes
                place += t // side * tile_bytes + t % side * depth
                if t < count:
                    for source in range(x + t * stride + begin, x + t * stride + end, depth):
                        store(place, load(source, "u8", depth))
                        place += step_bytes
                else:
                    for _ in range(begin, end, depth):
                        store(place, splat(uint8(0), "u8", depth))
                        place += step_bytes

    return pack


def turning(order: TileOrder, starts: Starts = AS_THEY_ARE) -> Any:
    """The function that turns 32-bit numbers of as many rows; of others it takes them to be 0.

    What it stores are ``starts`` of the numbers.
    """
    tokens, (start, factor) = order.tokens, starts

    @njit
    def turn(values, blocks, count, target):  # type: ignore[no-untyped-def]
        for index in range(blocks):
            for t in range(tokens):
                value = int_at(values, t * blocks + index) if t < count else 0
                set_int(target, index * tokens + t, start + factor * value)

    return turn


@kernel(
    "pack_row",
    f"rows:i64[1] x:i8[rows, k; x_stride] x_stride k least packed:i8[{PADDED_ROWS}, k]",
)
def pack_row(side: int, depth: int, pair: int) -> Body:
    """Activations in tile order, for products of rows with one scale; a chunk is a pair of tiles.

    Nothing is done for a batch of fewer than ``least`` rows, which leaves tiles alone.
    """
    order = TileOrder(side, depth, pair)
    pack, tokens = packing(order), order.tokens

    def body(a: Arguments, chunk: int) -> None:
        rows, first = word(a.rows, 0), chunk * tokens
        if first < rows and rows >= a.least:
            pack(a.x + first * a.x_stride, a.x_stride, rows - first, a.k, a.packed + first * a.k)

    return body


def _block_arguments(padded: str) -> str:
    """Arguments of the kernels for blocks, which fill up rows to so many."""
    return (
        f"rows:i64[1] x:i8[rows, k; x_stride] x_stride k least packed:i8[{padded}, k] blocks"
        " x_scale:f32[rows, blocks] x_sum:i32[rows, blocks]"
        f" scale:f32[{padded}, blocks] sum:i32[{padded}, blocks]"
    )


def _block_kernel(order: TileOrder, starts: Starts) -> Body:
    """Packs activations, and turns their scales and ``starts`` of their sums."""
    pack, tokens = packing(order), order.tokens
    turn, turn_sums = turning(order), turning(order, starts)

    def body(a: Arguments, chunk: int) -> None:
        rows, first = word(a.rows, 0), chunk * tokens
        if first < rows and rows >= a.least:
            count, at = rows - first, first * a.blocks * 4
            pack(a.x + first * a.x_stride, a.x_stride, count, a.k, a.packed + first * a.k)
            turn(a.x_scale + at, a.blocks, count, a.scale + at)
            turn_sums(a.x_sum + at, a.blocks, count, a.sum + at)

    return body


@kernel("pack_block", _block_arguments(PADDED_ROWS))
def pack_block(side: int, depth: int, pair: int) -> Body:
    """The same for blocks with scales, which are turned, and so are the sums of activations."""
    return _block_kernel(TileOrder(side, depth, pair), AS_THEY_ARE)


@kernel("order_block", _block_arguments("-(-rows // tokens) * tokens"))
def order_block(bits: int, tokens: int, isa: str, zeros: int) -> Body:
    """The same for ``gemm_block``, whose sums of blocks begin with what becomes of those given.

    A chunk is ``tokens`` rows; ``bits`` and ``zeros`` are those of the weights.
    """
    starts = starts_of(bits, isa, zeros_when_unpacked(bits, isa, zeros))
    return _block_kernel(vector_order(tokens), starts)
