"""Causal attention of single rows, as in decoding: bound by reading keys and values.

Softmax runs online: per page of tokens a running maximum, the sum of weights and the weighted
sum of values, all float32, so that a context of any length takes a fixed amount of memory. All
query heads of a group take part in one pass over the keys and values of a page. Error against
float64 below 3e-6 of the largest value plus what the cache's type loses; with int8 another
5e-4, because queries and weights are rounded to 16 bits (``tiles_int8.py``).

One core keeps few reads of memory under way, and computing takes as long as reading. So values
are asked for while keys are multiplied and the next page's keys while values are, a few lines at
a time.
"""

from __future__ import annotations

from math import gcd

from numba import float32, njit

from edgerun.kernels.attention_parts import (
    FIELDS,
    KEYS,
    KV_HEADS,
    PAGE_TOKENS,
    POSITIONS,
    UNITS,
    VALUES,
    WINDOW,
    clear,
    end_of_block,
    gather,
    merge,
    scatter,
    slot_of,
    soften,
    visible_from,
)
from edgerun.kernels.attention_units import UNIT_END, UNIT_INTS, UNIT_PAGE, UNIT_ROW
from edgerun.kernels.machine import prefetch
from edgerun.kernels.registry import Body, kernel
from edgerun.kernels.tiles import ELEMENT_BYTES, score_tile, scratch, weigh_tile
from edgerun.kernels.tiles_int8 import round_rows, score_codes, weigh_codes
from edgerun.kernels.word import float_at, int_at, word

LINE = 64
WEIGH_TOKENS = 16  # values are read row by row, so many rows at a time


@kernel("attention", FIELDS)
def attention(dtype: str, head_dim: int, group: int, lanes: int) -> Body:
    """Attention of ``group`` query heads to a unit of one row; chunk = unit * kv_heads + kv_head.

    ``q`` and ``out`` are float32 ``[rows, stride]``, ``scale`` the address of a float32; a row
    sees the last ``window`` positions up to its own, or all of them when ``window`` is 0.
    """
    lanes, size = gcd(head_dim, lanes), ELEMENT_BYTES[dtype]
    # Larger blocks convert keys and values less often, but must not leave queries over.
    most = 4 if group % 4 == 0 and size > 1 else 2
    block, tokens, vectors, padded = blocking(group, most, head_dim, lanes)
    score, weigh, score_lanes = _score, _weigh, lanes
    if dtype == "int8":
        score, weigh, score_lanes = _score_int8, _weigh_int8, gcd(head_dim, 2 * lanes)
    wide, narrow, pairs = padded * head_dim * 4, padded * PAGE_TOKENS * 4, padded * 8
    # One area in this order: a store 4 KiB from what is loaded next would hold the load up.
    area = wide + narrow + wide + 3 * pairs + (wide + narrow) // 2 + wide + pairs

    def body(a: int, chunk: int) -> None:
        kv_heads = word(a, KV_HEADS)
        unit, head = word(a, UNITS) + chunk // kv_heads * UNIT_INTS * 4, chunk % kv_heads
        row, q = int_at(unit, UNIT_ROW), scratch(area)
        p, out = q + wide, q + wide + narrow
        state, codes = out + wide, out + wide + 2 * pairs
        total, sums = q + area - wide - pairs, q + area - pairs
        gather(a, unit, head, group, padded, q, head_dim, lanes)
        clear(out, state, padded, head_dim, lanes)
        clear(total, sums, group, head_dim, lanes)
        if size == 1:
            round_rows(q, codes, state + pairs, padded, head_dim, lanes)
        position = int_at(word(a, POSITIONS), row)
        begin, end = visible_from(position, word(a, WINDOW)), position + 1
        first = max(int_at(unit, UNIT_PAGE), begin // PAGE_TOKENS)
        last = min(int_at(unit, UNIT_END), position // PAGE_TOKENS + 1)
        for page in range(first, last):
            slot = slot_of(a, row, page, head)
            following = slot_of(a, row, min(page + 1, last - 1), head)
            low = max(0, begin - page * PAGE_TOKENS)
            high = min(PAGE_TOKENS, end - page * PAGE_TOKENS)
            keys = word(a, KEYS) + slot * head_dim * size
            values = word(a, VALUES) + slot * head_dim * size
            ahead = word(a, KEYS) + following * head_dim * size
            x = codes if size == 1 else q
            score(
                x, keys, values, p, high, padded, block, tokens, head_dim, size, dtype, score_lanes
            )
            for m in range(group):
                mine, place = p + m * PAGE_TOKENS * 4, m * head_dim * 4
                factor = float_at(state + pairs, m) if size == 1 else float32(1)
                soften(
                    a,
                    slot,
                    mine,
                    out + place,
                    state + m * 8,
                    low,
                    high,
                    factor,
                    size,
                    head_dim,
                    lanes,
                )
            x = codes + wide // 2
            weigh(
                p,
                x,
                values,
                ahead,
                out,
                low,
                high,
                padded,
                block,
                vectors,
                head_dim,
                size,
                dtype,
                lanes,
            )
            if end_of_block(page, last):
                for m in range(group):
                    place = m * head_dim * 4
                    merge(total + place, sums + m * 8, out + place, state + m * 8, head_dim, lanes)
                clear(out, state, group, head_dim, lanes)
        scatter(a, unit, head, group, total, sums, head_dim, lanes)

    return body


def blocking(queries: int, most: int, head_dim: int, lanes: int) -> tuple[int, int, int, int]:
    """Queries a register block, tokens and value vectors beside them, and padded queries."""
    block = min(queries, most)
    vectors = gcd(head_dim // lanes, 8 // block)
    return block, 8 // block, vectors, -(-queries // block) * block


@njit(inline="always")
def _fetch(address, size):  # type: ignore[no-untyped-def]
    """Asks for ``size`` bytes."""
    for line in range(0, size, LINE):
        prefetch(address + line)


@njit(inline="always")
def _score(q, keys, values, p, high, padded, block, tokens, head_dim, size, dtype, lanes):  # type: ignore[no-untyped-def]
    """Scores of all queries against the first ``high`` tokens of a page, rounded up."""
    share = tokens * head_dim * size * block // padded
    for token in range(0, high, tokens):
        for m in range(0, padded, block):
            _fetch(values, share)
            values += share
            score_tile(
                q + m * head_dim * 4,
                keys + token * head_dim * size,
                p + (m * PAGE_TOKENS + token) * 4,
                PAGE_TOKENS,
                block,
                tokens,
                head_dim,
                dtype,
                lanes,
            )


@njit(inline="always")
def _score_int8(q, keys, values, p, high, padded, block, tokens, head_dim, size, dtype, lanes):  # type: ignore[no-untyped-def]
    """``_score`` of queries rounded to int16, still to be multiplied by the scales."""
    share = tokens * head_dim * block // padded
    for token in range(0, high, tokens):
        for m in range(0, padded, block):
            _fetch(values, share)
            values += share
            score_codes(
                q + m * head_dim * 2,
                keys + token * head_dim,
                p + (m * PAGE_TOKENS + token) * 4,
                PAGE_TOKENS,
                block,
                tokens,
                head_dim,
                lanes,
            )


@njit(inline="always")
def _weigh(  # type: ignore[no-untyped-def]
    p, codes, values, ahead, out, low, high, padded, block, vectors, head_dim, size, dtype, lanes
):
    """Adds the weighted values of tokens ``low .. high - 1`` to the outputs of all queries."""
    columns = vectors * lanes
    share = WEIGH_TOKENS * columns * size * block // padded
    for token in range(low, high, WEIGH_TOKENS):
        count = min(WEIGH_TOKENS, high - token)
        for column in range(0, head_dim, columns):
            for m in range(0, padded, block):
                _fetch(ahead, share)
                ahead += share
                weigh_tile(
                    p + (m * PAGE_TOKENS + token) * 4,
                    PAGE_TOKENS,
                    values + (token * head_dim + column) * size,
                    count,
                    out + (m * head_dim + column) * 4,
                    block,
                    vectors,
                    head_dim,
                    dtype,
                    lanes,
                )


@njit(inline="always")
def _weigh_int8(  # type: ignore[no-untyped-def]
    p, codes, values, ahead, out, low, high, padded, block, vectors, head_dim, size, dtype, lanes
):
    """``_weigh`` by weights rounded to int16; ``codes`` has room for them and their factors."""
    columns = vectors * lanes
    factors = codes + padded * PAGE_TOKENS * 2
    round_rows(p, codes, factors, padded, PAGE_TOKENS, lanes)
    share = PAGE_TOKENS * columns * block // padded
    even = low // 2 * 2  # tokens come in pairs; weights of the others are zero
    for column in range(0, head_dim, columns):
        for m in range(0, padded, block):
            _fetch(ahead, share)
            ahead += share
            weigh_codes(
                codes + (m * PAGE_TOKENS + even) * 2,
                PAGE_TOKENS,
                values + even * head_dim + column,
                (high - even + 1) // 2,
                factors + m * 4,
                out + (m * head_dim + column) * 4,
                block,
                vectors,
                head_dim,
                lanes,
            )
