"""Causal attention of many rows in bfloat16, faster than float32 and less exact.

Queries, keys, weights and values are rounded to 8 significant bits and multiplied by a matrix unit
(``tile_products.py``) or by dot products of pairs (``pair_products.py``); scores, softmax and sums
are float32. A page is brought into the order of tiles, which both take, once for all units of a
prompt, or for all queries of a unit if only that reads it or there is no room for more, and meets
32 of them at a time.

Bound: with a query q the score of a key k is wrong by at most ``2**-8 * scale * sum(|q| * |k|)``,
and by a quarter of that as a rule, since roundings are independent. Where d is the largest of
those, the output is wrong by at most ``(exp(2 * d) - 1 + 2**-7) * max(|v|)``. int8 keys and values
are exact in bfloat16, so that only queries and weights are rounded. To d comes 4e-5 of what scores
are bounded by.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any

from numba import float32, int32, njit

from edgerun.kernels.attention.pair_products import products_of
from edgerun.kernels.attention.parts import (
    ARGUMENTS,
    LOWEST,
    all_numbers,
    each_row_alone,
    scatter,
    slot_of,
    visible_from,
)
from edgerun.kernels.attention.tile_products import (
    DEPTH,
    QUERIES,
    SCORES_BYTES,
    WEIGHTS_BYTES,
    turn_words,
)
from edgerun.kernels.attention.units import (
    CACHED,
    DEEP,
    PAGE_TOKENS,
    TURNED_INTS,
    TURNED_PAGE,
    TURNED_ROW,
    UNIT_END,
    UNIT_PAGE,
    UNIT_ROW,
    UNIT_ROWS,
    UNIT_TURNED,
    UNIT_TURNED_END,
)
from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.bfloat16 import from_bfloat16, pair_up, to_bfloat16
from edgerun.kernels.lang.simd import cast, load, load_splat, maximum, reduce_max, splat, store
from edgerun.kernels.lang.tile_registers import LINE, SIDE, TILE_BYTES
from edgerun.kernels.lang.tiles import ELEMENT_BYTES, STORED, scratch
from edgerun.kernels.lang.vectormath import between, exp2_roughly, tanh_roughly
from edgerun.kernels.lang.word import float_at, int_at, set_float, set_int

LOG2_E, LN_2 = 1 / log(2), log(2)
RISE = 8.0  # of the highest score, in powers of two, up to which weights may exceed 1
EVERYTHING, SOMETHING, NOTHING = 2, 1, 0  # of a page that queries see
ROW_BYTES = QUERIES * 4  # of the scores of a token
GROUP_BYTES = PAGE_TOKENS * SIDE * 2  # of the weights of 16 queries
# Pages in the order of tiles: what ``turned_bytes`` counts, keys before values.
TILES_OF_PAGES = f"room turned?:u8[room, kv_heads, {PAGE_TOKENS * 4} * head_dim]"


@kernel(
    "turn_pages",
    f"positions:i32[rows] sequences:i32[rows] turned_pages:i32[room, {TURNED_INTS}] kv_heads"
    f" {TILES_OF_PAGES} {CACHED}",
)
def turn_pages(dtype: str, head_dim: int, multiplier: str) -> Body:
    """Brings pages that several units read into the order of tiles; chunk = page * kv_heads + head.

    Tokens behind the last one of the prompt have zeros for values.
    """
    size, page_bytes = ELEMENT_BYTES[dtype], PAGE_TOKENS * head_dim * 2
    turn_page = _turning_page(dtype, head_dim, multiplier)

    def body(a: Arguments, chunk: int) -> None:
        entry = a.turned_pages + chunk // a.kv_heads * TURNED_INTS * 4
        row, page = int_at(entry, TURNED_ROW), int_at(entry, TURNED_PAGE)
        present = min(PAGE_TOKENS, int_at(a.positions, row) + 1 - page * PAGE_TOKENS)
        place = slot_of(a, row, page, chunk % a.kv_heads) * head_dim * size
        keys, pairs = a.turned + chunk * 2 * page_bytes, scratch(page_bytes)
        values = keys + page_bytes
        turn_page(a.key_data + place, a.value_data + place, keys, values, pairs, 0, present)

    return body


@kernel("attention_bfloat16", f"{ARGUMENTS} {TILES_OF_PAGES}")
def attention_bfloat16(
    dtype: str, head_dim: int, group: int, lanes: int, stack: int, multiplier: str
) -> Body:
    """``attention_many`` with products in bfloat16; ``head_dim`` is a multiple of 32."""
    size = ELEMENT_BYTES[dtype]
    queries = -(-group * stack // QUERIES) * QUERIES
    wide, narrow, pair = queries * head_dim * 4, queries * head_dim * 2, queries * 8
    page_bytes = PAGE_TOKENS * head_dim * 2
    begin_products, score, weigh, end_products = products_of(multiplier, head_dim)
    turn_queries = _turning_queries(head_dim, group, multiplier)
    tiles_of = _tiles_of_page(dtype, head_dim, multiplier)
    soften, finish = _softening(size, head_dim, multiplier), _finishing(head_dim)

    @njit
    def attend(a, unit, head):  # type: ignore[no-untyped-def]
        row, rows = int_at(unit, UNIT_ROW), int_at(unit, UNIT_ROWS)
        count = rows * group
        used = (count + QUERIES - 1) // QUERIES * QUERIES
        q, out, state = scratch(narrow), scratch(wide), scratch(pair)
        # By columns: sums of values; highest scores, sums of weights; first and end of all seen.
        sums, running, sight = scratch(wide), scratch(pair), scratch(pair)
        keys, values, pairs = scratch(page_bytes), scratch(page_bytes), scratch(page_bytes)
        scores, weights = scratch(SCORES_BYTES), scratch(WEIGHTS_BYTES)
        turn_queries(a, row, head, count, used, out, q)
        _begin(a, row, group, count, used, sums, running, sight, used * head_dim)
        begin_products()
        begin, end = _seen(sight, 0, count)
        first = max(int_at(unit, UNIT_PAGE), begin // PAGE_TOKENS)
        last = min(int_at(unit, UNIT_END), (end - 1) // PAGE_TOKENS + 1)
        for page in range(first, last):
            # Of the rows here the first sees the earliest pages, and all that it shares.
            slot, base = slot_of(a, row, page, head), page * PAGE_TOKENS
            since, present = max(0, begin - base), min(PAGE_TOKENS, end - base)
            k, v = tiles_of(a, unit, head, page, slot, since, present, keys, values, pairs)
            for m in range(0, used, QUERIES):
                what = _what_is_seen(sight, m, min(m + QUERIES, count), base)
                if what != NOTHING:
                    score(k, q + m * head_dim * 2, scores, present)
                    for half in range(2):
                        lane, source = m + half * SIDE, scores + half * LINE
                        target = weights + half * GROUP_BYTES
                        soften(a, slot, base, what, lane, source, target, sums, running, sight)
                    weigh(v, weights, sums + m * head_dim * 4, present)
        end_products()
        finish(used, sums, running, out, state)
        scatter(a, unit, int_at(unit, UNIT_PAGE), head, group, out, state, head_dim, lanes)
        is_whole = True
        for m in range(0, count, QUERIES):
            is_whole = is_whole and all_numbers(out + m * head_dim * 4, head_dim, SIDE)
        return is_whole

    return each_row_alone(attend)


def _turning_queries(head_dim: int, group: int, multiplier: str) -> Callable[..., None]:
    """The function that scales queries, and brings them into the order of tiles by way of rows."""
    row_bytes, steps = head_dim * 2, head_dim // DEEP

    @njit(inline="always")
    def turn_queries(a, row, head, count, used, rows, q):  # type: ignore[no-untyped-def]
        factor = splat(float_at(a.scale, 0) * float32(LOG2_E), "f32", SIDE)
        zero = splat(int32(0), "i16", SIDE)
        for m in range(count):
            query = (row + m // group) * a.q_stride + (head * group + m % group) * head_dim
            for index in range(0, head_dim, SIDE):
                value = load(a.q + (query + index) * 4, "f32", SIDE) * factor
                store(rows + m * row_bytes + index * 2, cast(to_bfloat16(value, multiplier), "i16"))
        for index in range(count * head_dim, used * head_dim, SIDE):
            store(rows + index * 2, zero)
        for m in range(0, used, SIDE):
            for step in range(steps):
                target = q + (m // SIDE * steps + step) * TILE_BYTES
                turn_words(rows + m * row_bytes + step * DEPTH, target, row_bytes, LINE)

    turning: Callable[..., None] = turn_queries
    return turning


@njit
def _begin(a, row, group, count, used, sums, running, sight, elements):  # type: ignore[no-untyped-def]
    """Results of no tokens; the positions that queries see, none behind ``count``."""
    zero, lowest = splat(float32(0), "f32", SIDE), splat(float32(LOWEST), "f32", SIDE)
    for index in range(0, elements, SIDE):
        store(sums + index * 4, zero)
    for m in range(0, used, SIDE):
        store(running + m * 8, lowest)
        store(running + m * 8 + LINE, zero)
    for m in range(used):
        first, end = 0, 0
        if m < count:
            position = int_at(a.positions, row + m // group)
            first, end = visible_from(position, a.window), position + 1
        place = sight + m // SIDE * 2 * LINE
        set_int(place, m % SIDE, first)
        set_int(place + LINE, m % SIDE, end)


@njit
def _seen(sight, first, last):  # type: ignore[no-untyped-def]
    """First position and end of those that any of some queries sees."""
    begin, end = 1 << 60, 0
    for m in range(first, last):
        place = sight + m // SIDE * 2 * LINE
        begin = min(begin, int_at(place, m % SIDE))
        end = max(end, int_at(place + LINE, m % SIDE))
    return begin, end


@njit
def _what_is_seen(sight, first, last, base):  # type: ignore[no-untyped-def]
    """How much of a page is seen by queries: everything by all, something by any, or nothing."""
    sees_all, sees_any = True, False
    for m in range(first, last):
        place = sight + m // SIDE * 2 * LINE
        since, until = int_at(place, m % SIDE) - base, int_at(place + LINE, m % SIDE) - base
        sees_all = sees_all and since <= 0 and until >= PAGE_TOKENS
        sees_any = sees_any or (since < PAGE_TOKENS and until > 0)
    if not sees_any:
        return NOTHING
    return EVERYTHING if sees_all and last - first == QUERIES else SOMETHING


def _tiles_of_page(dtype: str, head_dim: int, multiplier: str) -> Callable[..., Any]:
    """The function that says where keys and values of a page are in the order of tiles."""
    size, page_bytes = ELEMENT_BYTES[dtype], PAGE_TOKENS * head_dim * 2
    turn_page = _turning_page(dtype, head_dim, multiplier)

    @njit(inline="always")
    def tiles_of(a, unit, head, page, slot, since, present, keys, values, pairs):  # type: ignore[no-untyped-def]
        if page < int_at(unit, UNIT_TURNED_END):
            number = (int_at(unit, UNIT_TURNED) + page) * a.kv_heads + head
            place = a.turned + number * 2 * page_bytes
            return place, place + page_bytes
        place = slot * head_dim * size
        turn_page(a.key_data + place, a.value_data + place, keys, values, pairs, since, present)
        return keys, values

    tiles_of_page: Callable[..., Any] = tiles_of
    return tiles_of_page


def _turning_page(dtype: str, head_dim: int, multiplier: str) -> Callable[..., None]:
    """The function that rounds a page's keys, and its values in the order of tiles.

    Values of tokens that no query sees become zero, since zero times them may not be.
    """
    stored, size, line = STORED[dtype], ELEMENT_BYTES[dtype], head_dim * 4

    @njit(inline="always")
    def rounded(place):  # type: ignore[no-untyped-def]
        value = load(place, stored, SIDE)
        if size == 1:
            return to_bfloat16(cast(value, "f32"), multiplier)
        return to_bfloat16(value, multiplier)

    @njit
    def turn_page(k, v, keys, values, pairs, since, present):  # type: ignore[no-untyped-def]
        for index in range(0, present * head_dim, SIDE):
            store(keys + index * 2, cast(rounded(k + index * size), "i16"))
        nothing = splat(int32(0), "i32", SIDE)
        for token in range(0, PAGE_TOKENS, 2):
            is_seen, is_next = since <= token < present, since <= token + 1 < present
            for index in range(0, head_dim, SIDE):
                place = v + (token * head_dim + index) * size
                low = rounded(place) if is_seen else nothing
                high = rounded(place + head_dim * size) if is_next else nothing
                store(pairs + token // 2 * line + index * 4, pair_up(low, high))
        target = values
        for index in range(0, head_dim, SIDE):
            for token in range(0, PAGE_TOKENS, DEEP):
                turn_words(pairs + token // 2 * line + index * 4, target, line, LINE)
                target += TILE_BYTES

    turning: Callable[..., None] = turn_page
    return turning


def _softening(size: int, head_dim: int, multiplier: str) -> Callable[..., None]:
    """The function that turns scores of 16 queries into weights, and updates their sums.

    The highest score is raised only if it grows much: until then weights may be up to ``2**RISE``,
    and sums of values stay as they are.
    """
    top_of_all, top_of_seen = (_highest(size, is_masked) for is_masked in (False, True))
    top_of_bounded = _highest(size, True, is_bounded=True)
    weigh_all, weigh_seen = (_weighing(size, is_masked, multiplier) for is_masked in (False, True))

    @njit
    def soften(a, slot, base, what, lane, scores, weights, sums, running, sight):  # type: ignore[no-untyped-def]
        state, seen = running + lane * 8, sight + lane * 8
        page = splat(int32(base), "i32", SIDE)
        first = load(seen, "i32", SIDE) - page
        end = load(seen + LINE, "i32", SIDE) - page
        before, total = load(state, "f32", SIDE), load(state + LINE, "f32", SIDE)
        if a.softcap != 0:
            top = top_of_bounded(a, slot, scores, before, first, end)
        elif what == SOMETHING:
            top = top_of_seen(a, slot, scores, before, first, end)
        else:
            top = top_of_all(a, slot, scores, before, first, end)
        if reduce_max(top - before) > float32(RISE):
            factor = exp2_roughly(before - top)
            place = sums + lane * head_dim * 4
            for index in range(0, head_dim * LINE, LINE):
                store(place + index, load(place + index, "f32", SIDE) * factor)
            total = total * factor
            store(state, top)
        else:
            top = before
        if what == SOMETHING:
            total = weigh_seen(a, slot, scores, weights, top, total, first, end)
        else:
            total = weigh_all(a, slot, scores, weights, top, total, first, end)
        store(state + LINE, total)

    softening: Callable[..., None] = soften
    return softening


def _highest(size: int, is_masked: bool, is_bounded: bool = False) -> Callable[..., Any]:
    """The function that finds the highest score of each query; scales, bounds or masks scores."""

    @njit(inline="never" if is_bounded else "always")
    def top_score(a, slot, scores, before, first, end):  # type: ignore[no-untyped-def]
        top, lowest = before, splat(float32(LOWEST), "f32", SIDE)
        bound = splat(float_at(a.softcap, 0) * float32(LOG2_E), "f32", SIDE) if is_bounded else top
        for token in range(PAGE_TOKENS):
            place = scores + token * ROW_BYTES
            score = load(place, "f32", SIDE)
            if size == 1:
                score = score * load_splat(a.key_scales + (slot + token) * 4, SIDE)
            if is_bounded:
                score = tanh_roughly(score / bound) * bound
            if is_masked:
                score = between(score, lowest, first, end, token)
            if size == 1 or is_masked:
                store(place, score)
            top = maximum(top, score)
        return top

    highest: Callable[..., Any] = top_score
    return highest


def _weighing(size: int, is_masked: bool, multiplier: str) -> Callable[..., Any]:
    """The function that makes weights of scores, which are logarithms to base 2.

    What is summed are weights as they are rounded, so that a mean of values is one; of int8, before
    the scales of values go into them.
    """

    @njit(inline="always")
    def weight_of(a, slot, scores, top, first, end, token):  # type: ignore[no-untyped-def]
        """Bits of a token's weights, and what they add to the sums."""
        zero = splat(float32(0), "f32", SIDE)
        weight = exp2_roughly(load(scores + token * ROW_BYTES, "f32", SIDE) - top)
        if is_masked:
            weight = between(weight, zero, first, end, token)
        if size != 1:
            bits = to_bfloat16(weight, multiplier)
            return bits, from_bfloat16(bits)
        scaled = weight * load_splat(a.value_scales + (slot + token) * 4, SIDE)
        if is_masked:
            scaled = between(scaled, zero, first, end, token)
        return to_bfloat16(scaled, multiplier), weight

    @njit(inline="always")
    def weigh(a, slot, scores, weights, top, total, first, end):  # type: ignore[no-untyped-def]
        for token in range(0, PAGE_TOKENS, 2):
            low, share = weight_of(a, slot, scores, top, first, end, token)
            high, other = weight_of(a, slot, scores, top, first, end, token + 1)
            total = total + (share + other)
            store(weights + token // 2 * LINE, pair_up(low, high))
        return total

    weighing: Callable[..., Any] = weigh
    return weighing


def _finishing(head_dim: int) -> Callable[..., None]:
    """The function that turns results into rows, and highest scores into natural logarithms."""
    row_bytes = head_dim * 4

    @njit
    def finish(used, sums, running, out, state):  # type: ignore[no-untyped-def]
        for m in range(0, used, SIDE):
            for index in range(0, head_dim, SIDE):
                source = sums + (m * head_dim + index * SIDE) * 4
                turn_words(source, out + m * row_bytes + index * 4, LINE, row_bytes)
        for m in range(used):
            place = running + m // SIDE * 2 * LINE
            top = float_at(place, m % SIDE)
            set_float(state, 2 * m, top * float32(LN_2) if top > float32(LOWEST) else top)
            set_float(state, 2 * m + 1, float_at(place + LINE, m % SIDE))

    finishing: Callable[..., None] = finish
    return finishing
