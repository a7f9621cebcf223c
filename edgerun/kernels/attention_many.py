"""Causal attention of several rows at a time, as in prefill: bound by arithmetic.

Rows of one sequence, or of sequences that share pages, meet every page of keys and values
together; pages that no row of a unit sees are not visited. A row gets the bits that
``attention.py`` gives it: the same sums in the same order, over tokens of which those that it does
not see weigh nothing.
"""

from __future__ import annotations

from math import gcd

from numba import float32, njit

from edgerun.kernels.attention import blocking
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
from edgerun.kernels.attention_units import UNIT_END, UNIT_INTS, UNIT_PAGE, UNIT_ROW, UNIT_ROWS
from edgerun.kernels.registry import Body, kernel
from edgerun.kernels.tiles import ELEMENT_BYTES, score_tile, scratch, weigh_tile
from edgerun.kernels.tiles_int8 import round_rows, score_codes, weigh_codes
from edgerun.kernels.word import float_at, int_at, word


@kernel("attention_many", FIELDS)
def attention_many(dtype: str, head_dim: int, group: int, lanes: int, rows: int) -> Body:
    """``attention`` for units of up to ``rows`` rows; chunk = unit * kv_heads + kv_head."""
    lanes, size = gcd(head_dim, lanes), ELEMENT_BYTES[dtype]
    block, tokens, vectors, padded = blocking(group * rows, 4, head_dim, lanes)
    score, weigh, score_lanes = _score, _weigh, lanes
    if dtype == "int8":
        score, weigh, score_lanes = _score_int8, _weigh_int8, gcd(head_dim, 2 * lanes)
    wide, narrow, pairs = padded * head_dim * 4, padded * PAGE_TOKENS * 4, padded * 8
    rounded = (wide + narrow + pairs) // 2

    def body(a: int, chunk: int) -> None:
        kv_heads = word(a, KV_HEADS)
        unit, head = word(a, UNITS) + chunk // kv_heads * UNIT_INTS * 4, chunk % kv_heads
        row, stop = int_at(unit, UNIT_ROW), int_at(unit, UNIT_ROW) + int_at(unit, UNIT_ROWS)
        q, p, codes = scratch(wide), scratch(narrow), scratch(rounded)
        factors = scratch(pairs)
        out, state, total, sums = scratch(wide), scratch(pairs), scratch(wide), scratch(pairs)
        count = (stop - row) * group
        used = (count + block - 1) // block * block
        gather(a, unit, head, group, used, q, head_dim, lanes)
        clear(out, state, used, head_dim, lanes)
        clear(total, sums, count, head_dim, lanes)
        if size == 1:
            round_rows(q, codes, factors, used, head_dim, lanes)
        begin, end = _seen(a, row, stop)
        first = max(int_at(unit, UNIT_PAGE), begin // PAGE_TOKENS)
        last = min(int_at(unit, UNIT_END), (end - 1) // PAGE_TOKENS + 1)
        for page in range(first, last):
            slot = slot_of(a, stop - 1, page, head)
            base = page * PAGE_TOKENS
            low, high = max(0, begin - base), min(PAGE_TOKENS, end - base)
            x = codes if size == 1 else q
            keys = word(a, KEYS) + slot * head_dim * size
            score(x, keys, p, high, used, block, tokens, head_dim, size, dtype, score_lanes)
            for m in range(count):
                position = int_at(word(a, POSITIONS), row + m // group)
                since = max(0, visible_from(position, word(a, WINDOW)) - base)
                until = min(PAGE_TOKENS, position + 1 - base)
                mine, place = p + m * PAGE_TOKENS * 4, out + m * head_dim * 4
                factor = float_at(factors, m) if size == 1 else float32(1)
                soften(
                    a,
                    slot,
                    mine,
                    place,
                    state + m * 8,
                    since,
                    until,
                    factor,
                    size,
                    head_dim,
                    lanes,
                )
            x = codes + wide // 2
            values = word(a, VALUES) + slot * head_dim * size
            weigh(p, x, values, out, low, high, used, block, vectors, head_dim, size, dtype, lanes)
            if end_of_block(page, last):
                for m in range(count):
                    place = m * head_dim * 4
                    merge(total + place, sums + m * 8, out + place, state + m * 8, head_dim, lanes)
                clear(out, state, used, head_dim, lanes)
        scatter(a, unit, head, group, total, sums, head_dim, lanes)

    return body


@njit
def _seen(a, row, stop):  # type: ignore[no-untyped-def]
    """First position and end of those that any of some rows sees."""
    begin, end = 1 << 60, 0
    for one in range(row, stop):
        position = int_at(word(a, POSITIONS), one)
        begin = min(begin, visible_from(position, word(a, WINDOW)))
        end = max(end, position + 1)
    return begin, end


@njit(inline="always")
def _score(q, keys, p, high, used, block, tokens, head_dim, size, dtype, lanes):  # type: ignore[no-untyped-def]
    """Scores of all queries against the first ``high`` tokens of a page, rounded up."""
    for m in range(0, used, block):
        for token in range(0, high, tokens):
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
def _score_int8(q, keys, p, high, used, block, tokens, head_dim, size, dtype, lanes):  # type: ignore[no-untyped-def]
    """``_score`` of queries rounded to int16, still to be multiplied by the scales."""
    for m in range(0, used, block):
        for token in range(0, high, tokens):
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
    p, codes, values, out, low, high, used, block, vectors, head_dim, size, dtype, lanes
):
    """Adds the weighted values of tokens ``low .. high - 1`` to the outputs of all queries."""
    for m in range(0, used, block):
        for column in range(0, head_dim, vectors * lanes):
            weigh_tile(
                p + (m * PAGE_TOKENS + low) * 4,
                PAGE_TOKENS,
                values + (low * head_dim + column) * size,
                high - low,
                out + (m * head_dim + column) * 4,
                block,
                vectors,
                head_dim,
                dtype,
                lanes,
            )


@njit(inline="always")
def _weigh_int8(  # type: ignore[no-untyped-def]
    p, codes, values, out, low, high, used, block, vectors, head_dim, size, dtype, lanes
):
    """``_weigh`` by weights rounded to int16; ``codes`` has room for them and their factors."""
    factors = codes + used * PAGE_TOKENS * 2
    round_rows(p, codes, factors, used, PAGE_TOKENS, lanes)
    even = low // 2 * 2  # tokens come in pairs; weights of the others are zero
    for m in range(0, used, block):
        for column in range(0, head_dim, vectors * lanes):
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
