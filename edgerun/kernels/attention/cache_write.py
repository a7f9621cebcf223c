"""Writes keys and values into the page pools of ``state/paged.py``."""

from __future__ import annotations

from math import gcd

from numba import float32, njit

from edgerun.kernels.attention.units import CACHE, PAGE_TOKENS
from edgerun.kernels.jit.registry import Body, kernel
from edgerun.kernels.lang.simd import load, store, store_f16
from edgerun.kernels.lang.tiles import ELEMENT_BYTES
from edgerun.kernels.lang.word import int_at, set_float, word
from edgerun.kernels.pointwise.quantize import block_factor, largest, round_codes


@kernel("cache_write", "rows positions sequences k k_stride v v_stride " + CACHE)
def cache_write(dtype: str, head_dim: int, lanes: int) -> Body:
    """Stores the keys and values of a row, float32 ``[rows, stride]``; a chunk is a row.

    Rounds to nearest even; int8 has one scale a head, absmax / 127.
    """
    lanes = gcd(head_dim, lanes)
    size = ELEMENT_BYTES[dtype]

    def body(a: int, chunk: int) -> None:
        position, sequence = int_at(word(a, 1), chunk), int_at(word(a, 2), chunk)
        kv_heads = word(a, 13)
        page = int_at(word(a, 11), sequence * word(a, 12) + position // PAGE_TOKENS)
        slot = page * word(a, 14) * PAGE_TOKENS + position % PAGE_TOKENS
        k = word(a, 3) + chunk * word(a, 4) * 4
        v = word(a, 5) + chunk * word(a, 6) * 4
        for _head in range(kv_heads):
            store_head(k, word(a, 7), word(a, 9), slot, size, head_dim, lanes)
            store_head(v, word(a, 8), word(a, 10), slot, size, head_dim, lanes)
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
