"""Convolutions over the last few tokens, which lie in the page pools of ``state/paged.py``.

A layer keeps one vector a token, as keys of one head without values. Buffers are float32 ``[rows,
stride]``; ``lanes`` is the number of float32 in a vector.
"""

from __future__ import annotations

from numba import float32, njit

from edgerun.kernels.attention.units import PAGE_TOKENS
from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import load, store
from edgerun.kernels.lang.word import float_at, int_at, set_float

_BATCH = "rows:i64[1] positions:i32[rows] sequences:i32[rows] width"
_PAGES = "key_data:cache page_table:cache pages:cache page_heads:cache"


@njit(inline="always")
def vector_at(a, sequence, position):  # type: ignore[no-untyped-def]
    """Address of what a layer keeps of a token."""
    page = int_at(a.page_table, sequence * a.pages + position // PAGE_TOKENS)
    slot = page * a.page_heads * PAGE_TOKENS + position % PAGE_TOKENS
    return a.key_data + slot * a.width * 4


@kernel(
    "short_conv_write",
    f"{_BATCH} gate:f32[rows, width; gate_stride] gate_stride"
    f" value:f32[rows, width; value_stride] value_stride {_PAGES}",
)
def short_conv_write(lanes: int) -> Body:
    """Stores ``gate * value`` of a row; a chunk is a row. One rounding an element."""

    def body(a: Arguments, chunk: int) -> None:
        state = vector_at(a, int_at(a.sequences, chunk), int_at(a.positions, chunk))
        gate = a.gate + chunk * a.gate_stride * 4
        value = a.value + chunk * a.value_stride * 4
        multiply(gate, value, state, a.width, lanes)

    return body


@kernel(
    "short_conv",
    f"{_BATCH} out:f32[rows, width; out_stride] out_stride taps:f32[count, width] count"
    f" result:f32[rows, width; result_stride] result_stride {_PAGES}",
)
def short_conv(lanes: int) -> Body:
    """Sums what was kept of the latest tokens times ``taps``, times ``out``; a chunk is a row.

    Two roundings for each token, from the first to the last, and one more.
    """

    def body(a: Arguments, chunk: int) -> None:
        position, sequence = int_at(a.positions, chunk), int_at(a.sequences, chunk)
        width, count = a.width, a.count
        result = a.result + chunk * a.result_stride * 4
        for index in range(width):
            set_float(result, index, float32(0))
        for place in range(max(0, position - count + 1), position + 1):
            taps = a.taps + (count - 1 - position + place) * width * 4
            add_product(vector_at(a, sequence, place), taps, result, width, lanes)
        multiply(a.out + chunk * a.out_stride * 4, result, result, width, lanes)

    return body


@njit(inline="always")
def multiply(x, y, out, width, lanes):  # type: ignore[no-untyped-def]
    """``out = x * y``; ``out`` may be an input."""
    whole = width // lanes * lanes
    for index in range(0, whole, lanes):
        store(
            out + index * 4, load(x + index * 4, "f32", lanes) * load(y + index * 4, "f32", lanes)
        )
    for index in range(whole, width):
        set_float(out, index, float_at(x, index) * float_at(y, index))


@njit(inline="always")
def add_product(x, y, out, width, lanes):  # type: ignore[no-untyped-def]
    """``out += x * y``, rounded twice."""
    whole = width // lanes * lanes
    for index in range(0, whole, lanes):
        product = load(x + index * 4, "f32", lanes) * load(y + index * 4, "f32", lanes)
        store(out + index * 4, load(out + index * 4, "f32", lanes) + product)
    for index in range(whole, width):
        set_float(out, index, float_at(out, index) + float_at(x, index) * float_at(y, index))
