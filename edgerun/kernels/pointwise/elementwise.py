"""Kernels that treat every element by itself: embeddings, gates, sums, rotary embedding.

Buffers are float32 ``[rows, stride]``; ``lanes`` is the number of float32 in a vector. ``rows``
is the address of an int64; these kernels leave it to the program to call them once a row.
"""

from __future__ import annotations

from typing import Any

from numba import float32, njit

from edgerun.activations.registry import ACTIVATIONS
from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang import vectormath
from edgerun.kernels.lang.simd import load, reduce_add, splat, store
from edgerun.kernels.lang.word import byte_at, float_at, int_at, set_float
from edgerun.kernels.pointwise.pieces import piece_of


@njit
def copy_floats(source: int, target: int, count: int) -> None:
    """Copies ``count`` float32."""
    whole = count // 8 * 8
    for index in range(0, whole, 8):
        store(target + index * 4, load(source + index * 4, "f32", 8))
    for index in range(whole, count):
        set_float(target, index, float_at(source, index))


@kernel(
    "embedding_dense",
    "rows:i64[1] ids:i32[rows] table:f32[vocab, width] out:f32[rows, width; out_stride] width"
    " out_stride vocab",
)
def embedding_dense() -> Body:
    """Rows ``ids`` (int32) of a float32 table ``[vocab, width]``; a chunk is a row. Exact."""

    def body(a: Arguments, chunk: int) -> None:
        width = a.width
        source = a.table + int_at(a.ids, chunk) * width * 4
        copy_floats(source, a.out + chunk * a.out_stride * 4, width)

    return body


@kernel(
    "embedding_block",
    "rows:i64[1] ids:i32[rows] codes:u8[vocab, -(-width // block), block * bits // 8]"
    " scales:f32[vocab, -(-width // block)] out:f32[rows, width; out_stride] width out_stride"
    " vocab",
)
def embedding_block(bits: int, block: int) -> Body:
    """Rows of a table in the MatMulNBits layout of the bundle; a chunk is a row.

    ``codes`` uint8 ``[vocab, blocks, block * bits / 8]``, ``scales`` float32
    ``[vocab, blocks]``, zero point ``2 ** (bits - 1)``. One rounding an element.
    """
    low = (1 << bits) - 1
    middle = 1 << (bits - 1)
    per_byte = 8 // bits

    def body(a: Arguments, chunk: int) -> None:
        width, identity = a.width, int_at(a.ids, chunk)
        blocks = (width + block - 1) // block
        codes = a.codes + identity * (blocks * block // per_byte)
        scales = a.scales + identity * blocks * 4
        out = a.out + chunk * a.out_stride * 4
        for index in range(width):
            code = (byte_at(codes, index // per_byte) >> (index % per_byte * bits)) & low
            set_float(out, index, float32(code - middle) * float_at(scales, index // block))

    return body


def gated(activation: str) -> Any:
    """The function that makes an output vector of those of a gate and an up projection."""
    functions = ACTIVATIONS[activation]
    of_gate, of_up = njit(functions.vector(vectormath)), njit(functions.up.vector(vectormath))

    @njit(inline="always")
    def combine(gate, up):  # type: ignore[no-untyped-def]
        return of_gate(gate) * of_up(up)

    return combine


@kernel(
    "gate",
    "rows:i64[1] gate:f32[rows, width; gate_stride] gate_stride up:f32[rows, width; up_stride]"
    " up_stride out:f32[rows, width; out_stride] out_stride width pieces",
)
def gate(activation: str, lanes: int) -> Body:
    """``out = activation(gate) * up``; ``out`` may be an input.

    A row is cut into ``pieces``: chunk = row * pieces + piece. Relative error below 4e-7.
    """
    combine = gated(activation)

    def body(a: Arguments, chunk: int) -> None:
        pieces, width = a.pieces, a.width
        row, piece = chunk // pieces, chunk % pieces
        first, whole, last = piece_of(width, pieces, piece, lanes)
        g = a.gate + row * a.gate_stride * 4
        u = a.up + row * a.up_stride * 4
        out = a.out + row * a.out_stride * 4
        for index in range(first, whole, lanes):
            x, y = load(g + index * 4, "f32", lanes), load(u + index * 4, "f32", lanes)
            store(out + index * 4, combine(x, y))
        for index in range(whole, last):
            x1, y1 = load(g + index * 4, "f32", 1), load(u + index * 4, "f32", 1)
            store(out + index * 4, combine(x1, y1))

    return body


@kernel(
    "gate_heads",
    "rows:i64[1] gate:f32[rows, heads; gate_stride] gate_stride"
    " up:f32[rows, heads, width; up_stride] up_stride"
    " out:f32[rows, heads, width; out_stride] out_stride heads width",
)
def gate_heads(activation: str, lanes: int) -> Body:
    """``out = activation(gate) * up`` with a gate a head; ``out`` may be ``up``; a chunk is a row.

    Relative error below 4e-7.
    """
    of_gate = njit(ACTIVATIONS[activation].vector(vectormath))

    def body(a: Arguments, chunk: int) -> None:
        width, gate = a.width, a.gate + chunk * a.gate_stride * 4
        up, out = a.up + chunk * a.up_stride * 4, a.out + chunk * a.out_stride * 4
        whole = width // lanes * lanes
        for head in range(a.heads):
            factor = reduce_add(of_gate(load(gate + head * 4, "f32", 1)))
            factors = splat(factor, "f32", lanes)
            for index in range(0, whole, lanes):
                store(out + index * 4, load(up + index * 4, "f32", lanes) * factors)
            for index in range(whole, width):
                set_float(out, index, float_at(up, index) * factor)
            up += width * 4
            out += width * 4

    return body


@kernel(
    "add",
    "rows:i64[1] left:f32[rows, width] right:f32[rows, width] out:f32[rows, width] width",
)
def add(lanes: int) -> Body:
    """``out = left + right``; ``out`` may be an input; a chunk is a row. Exact."""

    def body(a: Arguments, chunk: int) -> None:
        width = a.width
        start = chunk * width * 4
        left, right, out = a.left + start, a.right + start, a.out + start
        whole = width // lanes * lanes
        for index in range(0, whole, lanes):
            total = load(left + index * 4, "f32", lanes) + load(right + index * 4, "f32", lanes)
            store(out + index * 4, total)
        for index in range(whole, width):
            set_float(out, index, float_at(left, index) + float_at(right, index))

    return body


@kernel(
    "add_to_heads",
    "rows:i64[1] left:f32[rows, heads, width; left_stride] left_stride"
    " right:f32[rows, width; right_stride] right_stride"
    " out:f32[rows, heads, width; out_stride] out_stride heads width",
)
def add_to_heads(lanes: int) -> Body:
    """``out = left + right`` with ``right`` for every head; ``out`` may be ``left``. Exact.

    A chunk is a row.
    """

    def body(a: Arguments, chunk: int) -> None:
        width = a.width
        right = a.right + chunk * a.right_stride * 4
        whole = width // lanes * lanes
        for head in range(a.heads):
            left = a.left + (chunk * a.left_stride + head * width) * 4
            out = a.out + (chunk * a.out_stride + head * width) * 4
            for index in range(0, whole, lanes):
                total = load(left + index * 4, "f32", lanes) + load(right + index * 4, "f32", lanes)
                store(out + index * 4, total)
            for index in range(whole, width):
                set_float(out, index, float_at(left, index) + float_at(right, index))

    return body


@kernel(
    "select_rows",
    "rows:i64[1] index:i32[rows] x:f32[rows, width; x_stride] x_stride"
    " out:f32[rows, width; out_stride] out_stride width",
)
def select_rows() -> Body:
    """``out[i] = x[index[i]]`` with int32 ``index``; ``rows`` counts the outputs. Exact."""

    def body(a: Arguments, chunk: int) -> None:
        source = a.x + int_at(a.index, chunk) * a.x_stride * 4
        copy_floats(source, a.out + chunk * a.out_stride * 4, a.width)

    return body


@kernel(
    "rotary",
    "rows:i64[1] positions:i32[rows] table:cache x:f32[rows, heads, head_dim; x_stride] x_stride"
    " heads head_dim",
)
def rotary(lanes: int) -> Body:
    """Rotates the pairs ``(i, i + head_dim / 2)`` of every head in place; a chunk is a row.

    ``table`` is float32 ``[positions, head_dim]``: the cosines of ``head_dim / 2`` angles, then
    their sines. ``head_dim`` is a multiple of twice ``lanes``. Three roundings an element.
    """

    def body(a: Arguments, chunk: int) -> None:
        head_dim = a.head_dim
        half = head_dim // 2
        table = a.table + int_at(a.positions, chunk) * head_dim * 4
        x = a.x + chunk * a.x_stride * 4
        for _head in range(a.heads):
            for index in range(0, half * 4, lanes * 4):
                cos, sin = (
                    load(table + index, "f32", lanes),
                    load(table + index + half * 4, "f32", lanes),
                )
                first, second = (
                    load(x + index, "f32", lanes),
                    load(x + index + half * 4, "f32", lanes),
                )
                store(x + index, first * cos - second * sin)
                store(x + index + half * 4, second * cos + first * sin)
            x += head_dim * 4

    return body
