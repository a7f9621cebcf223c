"""Causal attention of several rows at a time, as in prefill: bound by arithmetic.

Rows of one sequence, or of sequences that share pages, meet every page of keys and values
together; pages that no row of a unit sees are not visited. Softmax as in ``attention.py``, with
the same error but without rounding to 16 bits.
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
    gather,
    scatter,
    slot_of,
    soften,
    visible_from,
)
from edgerun.kernels.attention_units import UNIT_END, UNIT_INTS, UNIT_PAGE, UNIT_ROW, UNIT_ROWS
from edgerun.kernels.registry import Body, kernel
from edgerun.kernels.tiles import ELEMENT_BYTES, score_tile, scratch, weigh_tile
from edgerun.kernels.word import int_at, word


@kernel("attention_many", FIELDS)
def attention_many(dtype: str, head_dim: int, group: int, lanes: int, rows: int) -> Body:
    """``attention`` for units of up to ``rows`` rows; chunk = unit * kv_heads + kv_head."""
    lanes, size = gcd(head_dim, lanes), ELEMENT_BYTES[dtype]
    block, tokens, vectors, padded = blocking(group * rows, 4, head_dim, lanes)
    wide, narrow, pairs = padded * head_dim * 4, padded * PAGE_TOKENS * 4, padded * 8

    def body(a: int, chunk: int) -> None:
        kv_heads = word(a, KV_HEADS)
        unit, head = word(a, UNITS) + chunk // kv_heads * UNIT_INTS * 4, chunk % kv_heads
        row, stop = int_at(unit, UNIT_ROW), int_at(unit, UNIT_ROW) + int_at(unit, UNIT_ROWS)
        q, out, p, state = scratch(wide), scratch(wide), scratch(narrow), scratch(pairs)
        count = (stop - row) * group
        used = (count + block - 1) // block * block
        gather(a, unit, head, group, used, q, out, state, head_dim, lanes)
        begin, end = _seen(a, row, stop)
        first = max(int_at(unit, UNIT_PAGE), begin // PAGE_TOKENS)
        last = min(int_at(unit, UNIT_END), (end - 1) // PAGE_TOKENS + 1)
        for page in range(first, last):
            slot = slot_of(a, stop - 1, page, head)
            base = page * PAGE_TOKENS
            low, high = max(0, begin - base), min(PAGE_TOKENS, end - base)
            keys = word(a, KEYS) + slot * head_dim * size
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
            for m in range(count):
                position = int_at(word(a, POSITIONS), row + m // group)
                since = max(0, visible_from(position, word(a, WINDOW)) - base)
                until = min(PAGE_TOKENS, position + 1 - base)
                mine, sums = p + m * PAGE_TOKENS * 4, out + m * head_dim * 4
                one = float32(1)
                soften(a, slot, mine, sums, state + m * 8, since, until, one, size, head_dim, lanes)
            values = word(a, VALUES) + slot * head_dim * size
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
        scatter(a, unit, head, group, out, state, head_dim, lanes)

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
