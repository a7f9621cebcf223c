"""Causal attention of several rows at a time, as in prefill: bound by arithmetic.

Rows of one sequence, or of sequences that share pages, meet every page of keys and values
together; pages that no row of a unit sees are not visited. A row gets the bits that
``attention.py`` gives it: the same sums in the same order, over tokens of which those that it does
not see weigh nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from numba import float32, njit

from edgerun.kernels.attention import columns
from edgerun.kernels.attention.int8_tiles import round_rows
from edgerun.kernels.attention.pages import Blocking, Product, blocking, products
from edgerun.kernels.attention.parts import (
    SHARED_ARGUMENTS,
    all_numbers,
    clear,
    each_row_alone,
    end_of_block,
    gather,
    merge_block,
    raise_sums,
    scatter,
    slot_of,
    top_score,
    visible_from,
    weights_of,
)
from edgerun.kernels.attention.units import (
    PAGE_TOKENS,
    UNIT_END,
    UNIT_PAGE,
    UNIT_ROW,
    UNIT_ROWS,
    turning_pays,
)
from edgerun.kernels.jit.declare import Body, kernel
from edgerun.kernels.lang.tiles import ELEMENT_BYTES, scratch
from edgerun.kernels.lang.word import float_at, int_at, set_float


@kernel("attention_many", SHARED_ARGUMENTS)
def attention_many(dtype: str, head_dim: int, group: int, lanes: int, stack: int) -> Body:
    """``attention`` for units of up to ``stack`` rows; chunk = unit * kv_heads + kv_head."""
    lanes, size = gcd(head_dim, lanes), ELEMENT_BYTES[dtype]
    turns = turning_pays(dtype, head_dim, group, stack, lanes)
    most, _, sums_of = columns.SHAPES[lanes] if turns else (4, 2, 8)
    shape = blocking(group * stack, most, head_dim, lanes, sums_of)
    score, weigh = (
        _turned(dtype, head_dim, shape, lanes)
        if turns
        else _as_they_lie(dtype, head_dim, shape, lanes)
    )
    block = shape.block
    wide, narrow, pairs = shape.wide, shape.narrow, shape.pairs
    rounded, area_bytes = (wide + narrow) // 2, PAGE_TOKENS * head_dim * 4 if turns else 64
    soften_rows = _softening(dtype, head_dim, group, lanes)

    @njit
    def attend(a, unit, head):  # type: ignore[no-untyped-def]
        row, stop = int_at(unit, UNIT_ROW), int_at(unit, UNIT_ROW) + int_at(unit, UNIT_ROWS)
        q, p, codes, factors = scratch(wide), scratch(narrow), scratch(rounded), scratch(pairs)
        area, tops = scratch(area_bytes), scratch(pairs)
        out, state, total, sums = scratch(wide), scratch(pairs), scratch(wide), scratch(pairs)
        count = (stop - row) * group
        used = (count + block - 1) // block * block
        gather(a, unit, head, group, used, q, head_dim, lanes)
        clear(out, state, used, head_dim, lanes)
        clear(total, sums, count, head_dim, lanes)
        queries, weights, weight_factors = q, p, factors + pairs // 2
        if size == 1:
            round_rows(q, codes, factors, used, head_dim, lanes)
            queries, weights = codes, codes + wide // 2
        begin, end = _seen(a, row, stop)
        first = max(int_at(unit, UNIT_PAGE), begin // PAGE_TOKENS)
        last = min(int_at(unit, UNIT_END), (end - 1) // PAGE_TOKENS + 1)
        for page in range(first, last):
            # Of the rows here the first sees the earliest pages, and all that it shares.
            slot = slot_of(a, row, page, head // a.shares)
            base = page * PAGE_TOKENS
            low, high = max(0, begin - base), min(PAGE_TOKENS, end - base)
            keys = a.key_data + slot * head_dim * size
            score(queries, keys, p, used, high, area)
            soften_rows(a, slot, row, base, count, p, out, state, factors, tops)
            if size == 1:
                round_rows(p, weights, weight_factors, used, PAGE_TOKENS, lanes)
            values = a.value_data + slot * head_dim * size
            weigh(weights, values, weight_factors, out, used, low, high, area)
            if end_of_block(page, last):
                merge_block(total, sums, out, state, count, head_dim, lanes)
        scatter(a, unit, int_at(unit, UNIT_PAGE), head, group, total, sums, head_dim, lanes)
        return all_numbers(total, head_dim, lanes)

    return each_row_alone(attend)


def _as_they_lie(dtype: str, head_dim: int, shape: Blocking, lanes: int) -> tuple[Product, Product]:
    """Both products of a page for all queries of a unit, from keys and values in the cache."""
    score_block, weigh_block = products(dtype, head_dim, shape, lanes)
    block, tokens, width = shape.block, shape.tokens, shape.vectors * lanes

    @njit(inline="always")
    def score(q, keys, p, used, high, area):  # type: ignore[no-untyped-def]
        for m in range(0, used, block):
            for token in range(0, high, tokens):
                score_block(q, keys, p, m, token)

    @njit(inline="always")
    def weigh(p, values, factors, out, used, low, high, area):  # type: ignore[no-untyped-def]
        for m in range(0, used, block):
            for column in range(0, head_dim, width):
                weigh_block(p, values, factors, out, m, column, low, high)

    return score, weigh


def _turned(dtype: str, head_dim: int, shape: Blocking, lanes: int) -> tuple[Product, Product]:
    """The same, from what a page's keys and values become once for all queries in ``area``."""
    block, width, size = shape.block, shape.vectors * lanes, ELEMENT_BYTES[dtype]
    vectors = columns.SHAPES[lanes][1]
    _, weigh_block = products("fp32", head_dim, shape, lanes)

    @njit(inline="always")
    def score(q, keys, p, used, high, area):  # type: ignore[no-untyped-def]
        end = (high + vectors * lanes - 1) // (vectors * lanes) * (vectors * lanes)
        columns.turn_keys(keys, area, end, head_dim, dtype, size, lanes)
        for m in range(0, used, block):
            for token in range(0, end, vectors * lanes):
                columns.score_columns(
                    q + m * head_dim * 4,
                    area + token * 4,
                    p + (m * PAGE_TOKENS + token) * 4,
                    block,
                    vectors,
                    head_dim,
                    lanes,
                )

    @njit(inline="always")
    def weigh(p, values, factors, out, used, low, high, area):  # type: ignore[no-untyped-def]
        wide = values
        if size == 2:
            columns.widen_values(values, area, low, high, head_dim, lanes)
            wide = area
        for m in range(0, used, block):
            for column in range(0, head_dim, width):
                weigh_block(p, wide, factors, out, m, column, low, high)

    return score, weigh


def _softening(dtype: str, head_dim: int, group: int, lanes: int) -> Callable[..., None]:
    """Turns scores of a page into weights and updates running sums, for all queries of a unit.

    Each sees the tokens of the page that its row sees. A state is the running maximum and the sum
    of weights (Milakov and Gimelshein 2018); ``out`` is the sum of values under them. The highest
    scores of all queries come first, into ``tops``: lanes of one are compared while the next ones
    are read, and no weight waits for that.
    """
    size = ELEMENT_BYTES[dtype]

    @njit(inline="always")
    def seen_of(a, row, base, m):  # type: ignore[no-untyped-def]
        position = int_at(a.positions, row + m // group)
        since = max(0, visible_from(position, a.window) - base)
        return since, min(PAGE_TOKENS, position + 1 - base)

    @njit(inline="always")
    def soften_rows(a, slot, row, base, count, p, out, state, factors, tops):  # type: ignore[no-untyped-def]
        for m in range(count):
            since, until = seen_of(a, row, base, m)
            scores, running = p + m * PAGE_TOKENS * 4, state + m * 8
            factor = float_at(factors, m) if size == 1 else float32(1)
            if since <= 0 and until >= PAGE_TOKENS:
                top = top_score(a, slot, scores, running, since, until, factor, size, lanes, False)
            else:
                top = top_score(a, slot, scores, running, since, until, factor, size, lanes, True)
            set_float(tops, m, top)
        for m in range(count):
            since, until = seen_of(a, row, base, m)
            scores, place, top = p + m * PAGE_TOKENS * 4, out + m * head_dim * 4, float_at(tops, m)
            if since <= 0 and until >= PAGE_TOKENS:
                total = weights_of(a, slot, scores, top, since, until, size, lanes, False)
            else:
                total = weights_of(a, slot, scores, top, since, until, size, lanes, True)
            raise_sums(state + m * 8, place, top, total, head_dim, lanes)

    softening: Callable[..., None] = soften_rows
    return softening


@njit
def _seen(a, row, stop):  # type: ignore[no-untyped-def]
    """First position and end of those that any of some rows sees."""
    begin, end = 1 << 60, 0
    for member in range(row, stop):
        position = int_at(a.positions, member)
        begin = min(begin, visible_from(position, a.window))
        end = max(end, position + 1)
    return begin, end
