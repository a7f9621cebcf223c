"""Moves blocks of keys and values between float32 and the page pools of ``state/paged.py``."""

from __future__ import annotations

from math import gcd

from numba import float32, njit

from edgerun.kernels.attention.cache_write import store_head
from edgerun.kernels.attention.units import CACHE, PAGE_TOKENS
from edgerun.kernels.jit.registry import Body, kernel
from edgerun.kernels.lang.simd import cast, load, splat, store
from edgerun.kernels.lang.tiles import ELEMENT_BYTES
from edgerun.kernels.lang.word import float_at, int_at, word

# Arguments of both. ``k`` and ``v`` are float32 ``[tokens, kv_heads, head_dim]``.
TOKENS, START, SLOT, K, V = range(5)
KEYS, VALUES, KEY_SCALES, VALUE_SCALES, PAGE_TABLE, PAGES, KV_HEADS, PAGE_HEADS = range(5, 13)
FIELDS = "tokens start slot k v " + CACHE


@njit
def _page_of(a, position):  # type: ignore[no-untyped-def]
    """The page that holds a position of the slot; negative if there is none."""
    index = word(a, SLOT) * word(a, PAGES) + position // PAGE_TOKENS
    return int_at(word(a, PAGE_TABLE), index)


@kernel("block_write", FIELDS)
def block_write(dtype: str, head_dim: int, lanes: int) -> Body:
    """Stores the rows of a block as ``cache_write`` stores them; one chunk."""
    lanes, size = gcd(head_dim, lanes), ELEMENT_BYTES[dtype]

    def body(a: int, chunk: int) -> None:
        k, v, kv_heads = word(a, K), word(a, V), word(a, KV_HEADS)
        for position in range(word(a, START), word(a, START) + word(a, TOKENS)):
            page = _page_of(a, position)
            place = page * word(a, PAGE_HEADS) * PAGE_TOKENS + position % PAGE_TOKENS
            for _head in range(kv_heads):
                store_head(k, word(a, KEYS), word(a, KEY_SCALES), place, size, head_dim, lanes)
                store_head(v, word(a, VALUES), word(a, VALUE_SCALES), place, size, head_dim, lanes)
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


@kernel("block_read", FIELDS)
def block_read(dtype: str, head_dim: int, lanes: int) -> Body:
    """Reads a block; positions that have no page any more are zeros; one chunk."""
    lanes, size = gcd(head_dim, lanes), ELEMENT_BYTES[dtype]

    def body(a: int, chunk: int) -> None:
        k, v, kv_heads = word(a, K), word(a, V), word(a, KV_HEADS)
        zero = splat(float32(0), "f32", lanes)
        for position in range(word(a, START), word(a, START) + word(a, TOKENS)):
            page = _page_of(a, position)
            place = page * word(a, PAGE_HEADS) * PAGE_TOKENS + position % PAGE_TOKENS
            for _head in range(kv_heads):
                if page < 0:
                    for index in range(0, head_dim * 4, lanes * 4):
                        store(k + index, zero)
                        store(v + index, zero)
                else:
                    _load_head(k, word(a, KEYS), word(a, KEY_SCALES), place, size, head_dim, lanes)
                    scales = word(a, VALUE_SCALES)
                    _load_head(v, word(a, VALUES), scales, place, size, head_dim, lanes)
                place += PAGE_TOKENS
                k += head_dim * 4
                v += head_dim * 4

    return body
