"""Causal attention of single rows, as in decoding: bound by reading keys and values.

Softmax runs online: per page of tokens a running maximum, the sum of weights and the weighted
sum of values, all float32, so that a context of any length takes a fixed amount of memory. All
query heads of a group take part in one pass over the keys and values of a page. Error against
float64 below 3e-6 of the largest value plus what the cache's type loses; with int8 another
5e-4, because queries and weights are rounded to 16 bits (``int8_tiles.py``).

One core keeps few reads of memory under way, and computing takes as long as reading. So values
are asked for while keys are multiplied and the next page's keys while values are, a few lines at
a time.
"""

from __future__ import annotations

from math import gcd

from numba import float32, njit

from edgerun.kernels.attention.int8_tiles import round_rows
from edgerun.kernels.attention.pages import Blocking, Product, blocking, products
from edgerun.kernels.attention.parts import (
    ARGUMENTS,
    clear,
    end_of_block,
    gather,
    merge_block,
    scatter,
    slot_of,
    soften,
    visible_from,
)
from edgerun.kernels.attention.units import PAGE_TOKENS, UNIT_END, UNIT_INTS, UNIT_PAGE, UNIT_ROW
from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.intrinsics import prefetch
from edgerun.kernels.lang.tiles import ELEMENT_BYTES, scratch
from edgerun.kernels.lang.word import float_at, int_at

LINE = 64
WIDE_LANES = 8  # from which on four queries share int8 keys and values, as measured
WEIGH_TOKENS = 8  # values are read row by row, so many rows at a time: what is asked for meanwhile
# are a few lines of the next keys, and more at once would hold up the reads under way


@kernel("attention", ARGUMENTS)
def attention(dtype: str, head_dim: int, group: int, lanes: int) -> Body:
    """Attention of ``group`` query heads to a unit of one row; chunk = unit * kv_heads + kv_head.

    ``q`` and ``out`` are float32 ``[rows, stride]``, ``scale`` the address of a float32; a row
    sees the last ``window`` positions up to its own, or all of them when ``window`` is 0.
    """
    lanes, size = gcd(head_dim, lanes), ELEMENT_BYTES[dtype]
    # Larger blocks convert keys and values less often, but must not leave queries over.
    most = 4 if group % 4 == 0 and (size > 1 or lanes >= WIDE_LANES) else 2
    shape = blocking(group, most, head_dim, lanes)
    score, weigh = _page_products(dtype, head_dim, shape, lanes)
    padded, wide, narrow, pairs = shape.padded, shape.wide, shape.narrow, shape.pairs
    # One area in this order: a store 4 KiB from what is loaded next would hold the load up.
    area = wide + narrow + wide + 3 * pairs + (wide + narrow) // 2 + wide + pairs

    def body(a: Arguments, chunk: int) -> None:
        kv_heads = a.kv_heads
        unit, head = a.units + chunk // kv_heads * UNIT_INTS * 4, chunk % kv_heads
        row, q = int_at(unit, UNIT_ROW), scratch(area)
        p, out = q + wide, q + wide + narrow
        state, codes = out + wide, out + wide + 2 * pairs
        total, sums = q + area - wide - pairs, q + area - pairs
        gather(a, unit, head, group, padded, q, head_dim, lanes)
        clear(out, state, padded, head_dim, lanes)
        clear(total, sums, group, head_dim, lanes)
        if size == 1:
            round_rows(q, codes, state + pairs, padded, head_dim, lanes)
        position = int_at(a.positions, row)
        begin, end = visible_from(position, a.window), position + 1
        first = max(int_at(unit, UNIT_PAGE), begin // PAGE_TOKENS)
        last = min(int_at(unit, UNIT_END), position // PAGE_TOKENS + 1)
        for page in range(first, last):
            slot = slot_of(a, row, page, head)
            following = slot_of(a, row, min(page + 1, last - 1), head)
            low = max(0, begin - page * PAGE_TOKENS)
            high = min(PAGE_TOKENS, end - page * PAGE_TOKENS)
            keys = a.key_data + slot * head_dim * size
            values = a.value_data + slot * head_dim * size
            ahead = a.key_data + following * head_dim * size
            score(codes if size == 1 else q, keys, values, p, high)
            for m in range(group):
                scores, place = p + m * PAGE_TOKENS * 4, out + m * head_dim * 4
                factor = float_at(state + pairs, m) if size == 1 else float32(1)
                running = state + m * 8
                soften(a, slot, scores, place, running, low, high, factor, size, head_dim, lanes)
            weigh(p, codes + wide // 2, values, ahead, out, low, high)
            if end_of_block(page, last):
                merge_block(total, sums, out, state, group, head_dim, lanes)
        scatter(a, unit, head, group, total, sums, head_dim, lanes)

    return body


def _page_products(
    dtype: str, head_dim: int, shape: Blocking, lanes: int
) -> tuple[Product, Product]:
    """Both products of all queries with a page, which ask for what is read next as they go."""
    score_block, weigh_block = products(dtype, head_dim, shape, lanes)
    block, tokens, padded, size = shape.block, shape.tokens, shape.padded, ELEMENT_BYTES[dtype]
    columns, span = shape.vectors * lanes, PAGE_TOKENS if size == 1 else WEIGH_TOKENS
    score_share = tokens * head_dim * size * block // padded
    weigh_share = span * columns * size * block // padded

    @njit(inline="always")
    def score(q, keys, ahead, p, high):  # type: ignore[no-untyped-def]
        for token in range(0, high, tokens):
            for m in range(0, padded, block):
                _fetch(ahead, score_share)
                ahead += score_share
                score_block(q, keys, p, m, token)

    @njit(inline="always")
    def weigh(p, codes, values, ahead, out, low, high):  # type: ignore[no-untyped-def]
        x, factors = p, codes + padded * PAGE_TOKENS * 2
        if size == 1:
            round_rows(p, codes, factors, padded, PAGE_TOKENS, lanes)
            x = codes
        for token in range(low, high, span):
            stop = min(high, token + span)
            for column in range(0, head_dim, columns):
                for m in range(0, padded, block):
                    _fetch(ahead, weigh_share)
                    ahead += weigh_share
                    weigh_block(x, values, factors, out, m, column, token, stop)

    return score, weigh


@njit(inline="always")
def _fetch(address, size):  # type: ignore[no-untyped-def]
    """Asks for ``size`` bytes."""
    for line in range(0, size, LINE):
        prefetch(address + line)
