"""Moves blocks of keys and values between float32 and the page pools of ``state/paged.py``."""

from __future__ import annotations

from numba import float32, njit

from edgerun.kernels.attention.cache_write import store_head
from edgerun.kernels.attention.units import CACHED, PAGE_TOKENS
from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import cast, load, splat, store
from edgerun.kernels.lang.tiles import ELEMENT_BYTES
from edgerun.kernels.lang.word import float_at, int_at

BLOCK = "f32[tokens, kv_heads, head_dim]"
ARGUMENTS = f"tokens start slot kv_heads head_dim k:{BLOCK} v:{BLOCK} {CACHED}"


@njit
def _page_of(a, position):  # type: ignore[no-untyped-def]
    """The page that holds a position of the slot; negative if there is none."""
    index = a.slot * a.pages + position // PAGE_TOKENS
    return int_at(a.page_table, index)


@kernel("block_write", ARGUMENTS)
def block_write(dtype: str, lanes: int) -> Body:
    """Stores the rows of a block as ``cache_write`` stores them; one chunk."""
    size = ELEMENT_BYTES[dtype]

    def body(a: Arguments, chunk: int) -> None:
        k, v, kv_heads, head_dim = a.k, a.v, a.kv_heads, a.head_dim
        for position in range(a.start, a.start + a.tokens):
            page = _page_of(a, position)
            place = page * a.page_heads * PAGE_TOKENS + position % PAGE_TOKENS
            for _head in range(kv_heads):
                store_head(k, a.key_data, a.key_scales, place, size, head_dim, lanes)
                store_head(v, a.value_data, a.value_scales, place, size, head_dim, lanes)
                place += PAGE_TOKENS
                k += head_dim * 4
                v += head_dim * 4

    return body


@njit(inline="always")
def _load_head(x, pool, scales, place, size, head_dim, lanes):  # type: ignore[no-untyped-def]
    """Reads one head from elements of ``size`` bytes; ``place`` counts heads from the pool."""
    source = pool + place * head_dim * size
    if size == 1:
        scale = splat(float_at(scales, place), "f32", lanes)
        for index in range(0, head_dim, lanes):
            store(x + index * 4, cast(load(source + index, "i8", lanes), "f32") * scale)
    elif size == 2:
        for index in range(0, head_dim, lanes):
            store(x + index * 4, load(source + index * 2, "f16", lanes))
    else:
        for index in range(0, head_dim, lanes):
            store(x + index * 4, load(source + index * 4, "f32", lanes))


@kernel("block_read", ARGUMENTS)
def block_read(dtype: str, lanes: int) -> Body:
    """Reads a block; positions that have no page any more are zeros; one chunk."""
    size = ELEMENT_BYTES[dtype]

    def body(a: Arguments, chunk: int) -> None:
        k, v, kv_heads, head_dim = a.k, a.v, a.kv_heads, a.head_dim
        zero = splat(float32(0), "f32", lanes)
        for position in range(a.start, a.start + a.tokens):
            page = _page_of(a, position)
            place = page * a.page_heads * PAGE_TOKENS + position % PAGE_TOKENS
            for _head in range(kv_heads):
                if page < 0:
                    for index in range(0, head_dim * 4, lanes * 4):
                        store(k + index, zero)
                        store(v + index, zero)
                else:
                    _load_head(k, a.key_data, a.key_scales, place, size, head_dim, lanes)
                    scales = a.value_scales
                    _load_head(v, a.value_data, scales, place, size, head_dim, lanes)
                place += PAGE_TOKENS
                k += head_dim * 4
                v += head_dim * 4

    return body
