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

from edgerun.kernels.attention.int8_tiles import round_rows
from edgerun.kernels.attention.pages import blocking, products
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
from edgerun.kernels.attention.units import (
    PAGE_TOKENS,
    UNIT_END,
    UNIT_INTS,
    UNIT_PAGE,
    UNIT_ROW,
    UNIT_ROWS,
)
from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.tiles import ELEMENT_BYTES, scratch
from edgerun.kernels.lang.word import float_at, int_at


@kernel("attention_many", ARGUMENTS)
def attention_many(dtype: str, head_dim: int, group: int, lanes: int, stack: int) -> Body:
    """``attention`` for units of up to ``stack`` rows; chunk = unit * kv_heads + kv_head."""
    lanes, size = gcd(head_dim, lanes), ELEMENT_BYTES[dtype]
    shape = blocking(group * stack, 4, head_dim, lanes)
    score, weigh = products(dtype, head_dim, shape, lanes)
    block, tokens, columns = shape.block, shape.tokens, shape.vectors * lanes
    wide, narrow, pairs = shape.wide, shape.narrow, shape.pairs
    rounded = (wide + narrow) // 2
    soften_rows = _softening(dtype, head_dim, group, lanes)

    def body(a: Arguments, chunk: int) -> None:
        kv_heads = a.kv_heads
        unit, head = a.units + chunk // kv_heads * UNIT_INTS * 4, chunk % kv_heads
        row, stop = int_at(unit, UNIT_ROW), int_at(unit, UNIT_ROW) + int_at(unit, UNIT_ROWS)
        q, p, codes, factors = scratch(wide), scratch(narrow), scratch(rounded), scratch(pairs)
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
            slot = slot_of(a, stop - 1, page, head)
            base = page * PAGE_TOKENS
            low, high = max(0, begin - base), min(PAGE_TOKENS, end - base)
            keys = a.key_data + slot * head_dim * size
            for m in range(0, used, block):
                for token in range(0, high, tokens):
                    score(queries, keys, p, m, token)
            soften_rows(a, slot, row, base, count, p, out, state, factors)
            if size == 1:
                round_rows(p, weights, weight_factors, used, PAGE_TOKENS, lanes)
            values = a.value_data + slot * head_dim * size
            for m in range(0, used, block):
                for column in range(0, head_dim, columns):
                    weigh(weights, values, weight_factors, out, m, column, low, high)
            if end_of_block(page, last):
                merge_block(total, sums, out, state, count, head_dim, lanes)
        scatter(a, unit, head, group, total, sums, head_dim, lanes)

    return body


def _softening(dtype: str, head_dim: int, group: int, lanes: int) -> Callable[..., None]:
    """``soften`` for all queries of a unit, each with the tokens of the page that its row sees."""
    size = ELEMENT_BYTES[dtype]

    @njit(inline="always")
    def soften_rows(a, slot, row, base, count, p, out, state, factors):  # type: ignore[no-untyped-def]
        for m in range(count):
            position = int_at(a.positions, row + m // group)
            since = max(0, visible_from(position, a.window) - base)
            until = min(PAGE_TOKENS, position + 1 - base)
            scores, place = p + m * PAGE_TOKENS * 4, out + m * head_dim * 4
            factor = float_at(factors, m) if size == 1 else float32(1)
            running = state + m * 8
            soften(a, slot, scores, place, running, since, until, factor, size, head_dim, lanes)

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
