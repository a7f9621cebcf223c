"""Causal attention of single rows, as in decoding: bound by reading keys and values.

Softmax runs online: per page of tokens a running maximum, the sum of weights and the weighted
sum of values, all float32, so that a context of any length takes a fixed amount of memory. All
query heads of a group take part in one pass over the keys and values of a page. Error against
float64 below 3e-6 of the largest value plus what the cache's type loses; with int8 another
5e-4, because queries and weights are rounded to 16 bits (``int8_tiles.py``). Where scores are
bounded they are as exact as the bound is in float32.

One core keeps few reads of memory under way, and computing takes as long as reading. So values
are asked for while keys are multiplied and the next page's keys while values are, a few lines at
a time. Small pages are over before what is asked for arrives: there all of the next page is asked
for while one is read. Where the first cache is small they come to the second (``units.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from numba import float32, njit

from edgerun.kernels.attention.int8_tiles import (
    TURNED_DIMENSIONS,
    TURNED_TOKENS,
    round_rows,
    score_turned,
    swap_middle,
)
from edgerun.kernels.attention.pages import Blocking, Product, blocking, products, weigh_int8
from edgerun.kernels.attention.parts import (
    SHARED_ARGUMENTS,
    clear,
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
    ROW_BLOCKS,
    ROW_INTS,
    UNIT_END,
    UNIT_INTS,
    UNIT_PAGE,
    UNIT_ROW,
    cache_of_pages,
)
from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.dot import X86
from edgerun.kernels.lang.intrinsics import prefetch, prefetch_far
from edgerun.kernels.lang.tiles import ELEMENT_BYTES, scratch
from edgerun.kernels.lang.word import float_at, int_at, set_float

LINE = 64
WIDE_LANES = 8  # from which on four queries share int8 keys and values, as measured
WEIGH_TOKENS = 8  # values are read row by row, so many rows at a time: what is asked for meanwhile
# are a few lines of the next keys, and more at once would hold up the reads under way
SMALL_BYTES = 4096  # of the keys of a page


_ask = prefetch_far if cache_of_pages() == 2 else prefetch


@dataclass(frozen=True, slots=True)
class _Reading:
    """How a page of one head is read, and what is asked for meanwhile.

    Attributes:
        turned: int8 keys of 16 tokens are turned, so that their scores need no adding up.
        small: all of the next page is asked for, rather than values and then the next keys.
        scored: bytes of the first half of that which are asked for while keys are multiplied.
        softened: bytes of it then, for each query.
        raised: bytes of the second half for each query, before values are added up.
        weighed: bytes of it meanwhile.
    """

    turned: bool
    small: bool
    scored: int
    softened: int
    raised: int
    weighed: int


def _reading(dtype: str, head_dim: int, group: int, shape: Blocking, lanes: int) -> _Reading:
    size = PAGE_TOKENS * head_dim * ELEMENT_BYTES[dtype]
    turned = (
        X86
        and dtype == "int8"
        and lanes == TURNED_TOKENS
        and shape.block == 4
        and head_dim % TURNED_DIMENSIONS == 0
    )
    if not turned:
        return _Reading(False, False, size, 0, 0, size)
    early, late = size // 8, size // 4
    return _Reading(
        turned=True,
        small=size <= SMALL_BYTES,
        scored=size - early,
        softened=early // group,
        raised=late // group,
        weighed=size - late,
    )


@kernel("attention", SHARED_ARGUMENTS)
def attention(dtype: str, head_dim: int, group: int, lanes: int) -> Body:
    """Attention of ``group`` query heads to a unit of one row; chunk = unit * kv_heads + kv_head.

    ``q`` and ``out`` are float32 ``[rows, stride]``, ``scale`` the address of a float32; a row
    sees the last ``window`` positions up to its own, or all of them when ``window`` is 0.
    """
    lanes, size = gcd(head_dim, lanes), ELEMENT_BYTES[dtype]
    # Larger blocks convert keys and values less often, but must not leave queries over.
    most = 4 if group % 4 == 0 and (size > 1 or lanes >= WIDE_LANES) else 2
    sums_of = 16 if size == 1 and lanes == TURNED_TOKENS else 8
    shape = blocking(group, most, head_dim, lanes, sums_of)
    reading = _reading(dtype, head_dim, group, shape, lanes)
    score, weigh = _page_products(dtype, head_dim, shape, lanes, reading)
    soften_all = _softening(dtype, head_dim, group, shape, lanes, reading)
    padded, wide, narrow, pairs = shape.padded, shape.wide, shape.narrow, shape.pairs
    turned, small, page_bytes = reading.turned, reading.small, PAGE_TOKENS * head_dim * size
    # One area in this order: a store 4 KiB from what is loaded next would hold the load up.
    area = wide + narrow + wide + 3 * pairs + (wide + narrow) // 2 + wide + 2 * pairs

    def body(a: Arguments, chunk: int) -> None:
        kv_heads = a.kv_heads
        unit, head = a.units + chunk // kv_heads * UNIT_INTS * 4, chunk % kv_heads
        row, key_head, q = int_at(unit, UNIT_ROW), head // a.shares, scratch(area)
        p, out = q + wide, q + wide + narrow
        state, codes = out + wide, out + wide + 2 * pairs
        tops = q + area - pairs
        sums, total = tops - pairs, tops - pairs - wide
        position = int_at(a.positions, row)
        begin, end = visible_from(position, a.window), position + 1
        first = max(int_at(unit, UNIT_PAGE), begin // PAGE_TOKENS)
        last = min(int_at(unit, UNIT_END), position // PAGE_TOKENS + 1)
        if small:
            _fetch_page(a, slot_of(a, row, first, key_head), page_bytes)
        gather(a, unit, head, group, padded, q, head_dim, lanes)
        clear(out, state, padded, head_dim, lanes)
        clear(total, sums, group, head_dim, lanes)
        if size == 1:
            round_rows(q, codes, state + pairs, padded, head_dim, lanes)
            if turned:
                swap_middle(codes, padded * head_dim)
        for page in range(first, last):
            slot = slot_of(a, row, page, key_head)
            following = slot_of(a, row, min(page + 1, last - 1), key_head)
            low = max(0, begin - page * PAGE_TOKENS)
            high = min(PAGE_TOKENS, end - page * PAGE_TOKENS)
            keys, values = (
                a.key_data + slot * head_dim * size,
                a.value_data + slot * head_dim * size,
            )
            next_keys = a.key_data + following * head_dim * size
            next_values = a.value_data + following * head_dim * size
            before, after = (next_keys, next_values) if small else (values, next_keys)
            score(codes if size == 1 else q, keys, before, p, high)
            soften_all(a, slot, following, p, out, state, tops, low, high, before, after)
            weigh(p, codes + wide // 2, values, after, out, low, high)
            if end_of_block(page, last):
                merge_block(total, sums, out, state, group, head_dim, lanes)
                _end_block(a, unit, page, last, head, group, total, sums, head_dim, lanes)

    return body


@njit(forceinline=True)
def _end_block(a, unit, page, last, head, group, total, sums, head_dim, lanes):  # type: ignore[no-untyped-def]
    """Stores what pages up to the end of a block come to, unless more blocks are added to it.

    Blocks of a row that leaves partial results are one each, though a unit has several.
    """
    place = a.row_blocks + int_at(unit, UNIT_ROW) * ROW_INTS * 4
    if page + 1 == last or int_at(place, ROW_BLOCKS) > 1:
        scatter(a, unit, page, head, group, total, sums, head_dim, lanes)
        clear(total, sums, group, head_dim, lanes)


def _softening(
    dtype: str, head_dim: int, group: int, shape: Blocking, lanes: int, reading: _Reading
) -> Product:
    """Softens the scores of all queries of a unit, and asks for scales and what else is read next.

    Step by step: one query after the other, each step would wait for the one before.
    """
    size, pairs = ELEMENT_BYTES[dtype], shape.pairs
    scored, softened, raised = reading.scored, reading.softened, reading.raised

    @njit(inline="always")
    def soften_all(a, slot, following, p, out, state, tops, low, high, before, after):  # type: ignore[no-untyped-def]
        added = tops + group * 4
        if size == 1:
            _fetch(a.key_scales + following * 4, PAGE_TOKENS * 4)
            _fetch(a.value_scales + following * 4, PAGE_TOKENS * 4)
        for m in range(group):
            _fetch(before + scored + m * softened, softened)
            factor = float_at(state + pairs, m) if size == 1 else float32(1)
            scores, running = p + m * PAGE_TOKENS * 4, state + m * 8
            top = top_score(a, slot, scores, running, low, high, factor, size, lanes, True)
            set_float(tops, m, top)
        for m in range(group):
            _fetch(after + m * raised, raised)
            scores, top = p + m * PAGE_TOKENS * 4, float_at(tops, m)
            set_float(added, m, weights_of(a, slot, scores, top, low, high, size, lanes, True))
        for m in range(group):
            running, place = state + m * 8, out + m * head_dim * 4
            raise_sums(running, place, float_at(tops, m), float_at(added, m), head_dim, lanes)

    softening: Product = soften_all
    return softening


def _page_products(
    dtype: str, head_dim: int, shape: Blocking, lanes: int, reading: _Reading
) -> tuple[Product, Product]:
    """Both products of all queries with a page, which ask for what is read next as they go."""
    score, weigh = _as_they_lie(dtype, head_dim, shape, lanes)
    if reading.turned:
        score = _turned(head_dim, shape, reading)
    return score, _weigh_int8(head_dim, shape, lanes, reading) if dtype == "int8" else weigh


def _as_they_lie(dtype: str, head_dim: int, shape: Blocking, lanes: int) -> tuple[Product, Product]:
    score_block, weigh_block = products(dtype, head_dim, shape, lanes)
    block, tokens, padded, size = shape.block, shape.tokens, shape.padded, ELEMENT_BYTES[dtype]
    columns = shape.vectors * lanes
    score_share = tokens * head_dim * size * block // padded
    weigh_share = WEIGH_TOKENS * columns * size * block // padded

    @njit(inline="always")
    def score(q, keys, ahead, p, high):  # type: ignore[no-untyped-def]
        for token in range(0, high, tokens):
            for m in range(0, padded, block):
                _fetch(ahead, score_share)
                ahead += score_share
                score_block(q, keys, p, m, token)

    @njit(inline="always")
    def weigh(p, codes, values, ahead, out, low, high):  # type: ignore[no-untyped-def]
        for token in range(low, high, WEIGH_TOKENS):
            stop = min(high, token + WEIGH_TOKENS)
            for column in range(0, head_dim, columns):
                for m in range(0, padded, block):
                    _fetch(ahead, weigh_share)
                    ahead += weigh_share
                    weigh_block(p, values, codes, out, m, column, token, stop)

    return score, weigh


def _turned(head_dim: int, shape: Blocking, reading: _Reading) -> Product:
    block, padded, parts = shape.block, shape.padded, head_dim // TURNED_DIMENSIONS
    asked = reading.scored // (PAGE_TOKENS * parts)

    @njit(inline="always")
    def score(q, keys, ahead, p, high):  # type: ignore[no-untyped-def]
        for token in range(0, high, TURNED_TOKENS):
            for m in range(0, padded, block):
                score_turned(
                    q + m * head_dim * 2,
                    keys + token * head_dim,
                    p + (m * PAGE_TOKENS + token) * 4,
                    PAGE_TOKENS,
                    ahead + token * asked * parts,
                    block,
                    head_dim,
                    asked,
                )

    product: Product = score
    return product


def _weigh_int8(head_dim: int, shape: Blocking, lanes: int, reading: _Reading) -> Product:
    block, padded = shape.block, shape.padded
    columns, skipped = shape.vectors * lanes, padded * PAGE_TOKENS * 2
    share = PAGE_TOKENS * columns * block // padded  # of the bytes of a page
    asked = share * reading.weighed // (PAGE_TOKENS * head_dim) * 2 // PAGE_TOKENS
    at_once = 0 if reading.turned else share
    asked = asked if reading.turned else 0
    behind = PAGE_TOKENS * head_dim - reading.weighed  # asked for before
    weigh_block = weigh_int8(head_dim, shape, lanes, asked)

    @njit(inline="always")
    def weigh(p, codes, values, ahead, out, low, high):  # type: ignore[no-untyped-def]
        factors = codes + skipped
        round_rows(p, codes, factors, padded, PAGE_TOKENS, lanes)
        ahead += behind
        for column in range(0, head_dim, columns):
            for m in range(0, padded, block):
                _fetch(ahead, at_once)
                weigh_block(codes, values, factors, out, m, column, low, high, ahead)
                ahead += at_once + asked * PAGE_TOKENS // 2

    product: Product = weigh
    return product


@njit(inline="always")
def _fetch(address, size):  # type: ignore[no-untyped-def]
    """Asks for ``size`` bytes."""
    for line in range(0, size, LINE):
        _ask(address + line)


@njit(inline="always")
def _fetch_page(a, slot, size):  # type: ignore[no-untyped-def]
    """Asks for a page of int8 keys and values, and their scales."""
    _fetch(a.key_data + slot * (size // PAGE_TOKENS), size)
    _fetch(a.key_scales + slot * 4, PAGE_TOKENS * 4)
    _fetch(a.value_scales + slot * 4, PAGE_TOKENS * 4)
    _fetch(a.value_data + slot * (size // PAGE_TOKENS), size)
