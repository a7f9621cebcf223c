"""Writes keys and values into the page pools of ``state/paged.py``."""

from __future__ import annotations

from numba import float32, njit

from edgerun.kernels.attention.units import CACHED, PAGE_TOKENS
from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import load, store, store_f16
from edgerun.kernels.lang.tiles import ELEMENT_BYTES
from edgerun.kernels.lang.word import int_at, set_float
from edgerun.kernels.pointwise.quantize import block_factor, largest, round_codes


@kernel(
    "cache_write",
    "rows:i64[1] positions:i32[rows] sequences:i32[rows] k:f32[rows, kv_heads, head_dim; k_stride]"
    " k_stride v:f32[rows, kv_heads, head_dim; v_stride] v_stride kv_heads head_dim " + CACHED,
)
def cache_write(dtype: str, lanes: int) -> Body:
    """Stores the keys and values of a row, float32 ``[rows, stride]``; a chunk is a row.

    Rounds to nearest even; int8 has one scale a head, absmax / 127. ``head_dim`` is a multiple of
    ``lanes``, and no constant: a head is stored as fast as it is read, and many widths share the
    code.
    """
    size = ELEMENT_BYTES[dtype]

    def body(a: Arguments, chunk: int) -> None:
        position, sequence = int_at(a.positions, chunk), int_at(a.sequences, chunk)
        kv_heads, head_dim = a.kv_heads, a.head_dim
        page = int_at(a.page_table, sequence * a.pages + position // PAGE_TOKENS)
        slot = page * a.page_heads * PAGE_TOKENS + position % PAGE_TOKENS
        k = a.k + chunk * a.k_stride * 4
        v = a.v + chunk * a.v_stride * 4
        for _head in range(kv_heads):
            store_head(k, a.key_data, a.key_scales, slot, size, head_dim, lanes)
            store_head(v, a.value_data, a.value_scales, slot, size, head_dim, lanes)
            slot += PAGE_TOKENS
            k += head_dim * 4
            v += head_dim * 4

    return body


@njit(inline="always")
def store_head(x, pool, scales, slot, size, head_dim, lanes):  # type: ignore[no-untyped-def]
    """Stores one head in elements of ``size`` bytes; ``slot`` counts heads from the pool."""
    place = pool + slot * head_dim * size
    if size == 1:
        scale = largest(x, head_dim, lanes) / float32(127)
        round_codes(x, head_dim, block_factor(scale), place, lanes)
        set_float(scales, slot, scale)
    elif size == 2:
        for index in range(0, head_dim, lanes):
            store_f16(place + index * 2, load(x + index * 4, "f32", lanes))
    else:
        for index in range(0, head_dim, lanes):
            store(place + index * 4, load(x + index * 4, "f32", lanes))
