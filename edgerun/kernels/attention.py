"""Causal attention over the paged cache of ``state/kv_cache.py``, and writing that cache.

The pool lies as ``[page, layer, kv_head, token, head_dim]`` and its base address is that of the
layer in page 0; ``page_heads`` heads lie from one page to the next. ``page_table`` is int32
``[sequences, pages]``. ``lanes`` is the number of float32
in a vector.

Softmax runs online (Milakov and Gimelshein 2018): per page of tokens a running maximum, the sum
of weights and the weighted sum of values, all float32, so that a context of any length takes a
fixed amount of memory. Error against float64 below 2e-6 of the largest value plus what the
cache's type loses.
"""

from __future__ import annotations

from math import gcd

from numba import float32, njit

from edgerun.kernels.quantize import block_factor, largest, round_codes
from edgerun.kernels.registry import Body, kernel
from edgerun.kernels.simd import load, maximum, reduce_add, reduce_max, splat, store, store_f16
from edgerun.kernels.tiles import ELEMENT_BYTES, score_tile, scratch, weigh_tile
from edgerun.kernels.vectormath import exp
from edgerun.kernels.word import float_at, int_at, set_float, word

PAGE_TOKENS = 64  # as in state/kv_cache.py
LOWEST = -3.0e38
CACHE = "keys values key_scales value_scales page_table pages kv_heads page_heads"


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
            _store_head(k, word(a, 7), word(a, 9), slot, size, head_dim, lanes)
            _store_head(v, word(a, 8), word(a, 10), slot, size, head_dim, lanes)
            slot += PAGE_TOKENS
            k += head_dim * 4
            v += head_dim * 4

    return body


@njit(inline="always")
def _store_head(x, pool, scales, slot, size, head_dim, lanes):  # type: ignore[no-untyped-def]
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


# Arguments of ``attention`` and ``attention_many``.
ROWS, POSITIONS, SEQUENCES, Q, Q_STRIDE, OUT, OUT_STRIDE = range(7)
KEYS, VALUES, KEY_SCALES, VALUE_SCALES, PAGE_TABLE, PAGES, KV_HEADS = range(7, 14)
PAGE_HEADS, SCALE, WINDOW = range(14, 17)
FIELDS = "rows positions sequences q q_stride out out_stride " + CACHE + " scale window"


@kernel("attention", FIELDS)
def attention(dtype: str, head_dim: int, group: int, lanes: int) -> Body:
    """Attention of ``group`` query heads of one row; chunk = row * kv_heads + kv_head.

    ``q`` and ``out`` are float32 ``[rows, stride]``, ``scale`` the address of a float32; a row
    sees the last ``window`` positions up to its own, or all of them when ``window`` is 0.
    """
    lanes, size = gcd(head_dim, lanes), ELEMENT_BYTES[dtype]
    block, tokens, vectors, padded = _blocking(group, head_dim, lanes)
    wide, narrow, pairs = padded * head_dim * 4, padded * PAGE_TOKENS * 4, padded * 8

    def body(a: int, chunk: int) -> None:
        kv_heads = word(a, KV_HEADS)
        row, head = chunk // kv_heads, chunk % kv_heads
        q, out, p, state = scratch(wide), scratch(wide), scratch(narrow), scratch(pairs)
        _gather(a, row, row + 1, head, group, padded, q, out, state, head_dim, lanes)
        begin, end = _visible(a, row), int_at(word(a, POSITIONS), row) + 1
        for page in range(begin // PAGE_TOKENS, (end + PAGE_TOKENS - 1) // PAGE_TOKENS):
            slot = _slot(a, row, page, head)
            base = page * PAGE_TOKENS
            low, high = max(0, begin - base), min(PAGE_TOKENS, end - base)
            keys = word(a, KEYS) + slot * head_dim * size
            for m in range(0, padded, block):
                _scores(q, keys, p, m, high, size, block, tokens, head_dim, dtype, lanes)
            for m in range(group):
                _soften(a, slot, p, out, state, m, low, high, size, head_dim, lanes)
            values = word(a, VALUES) + slot * head_dim * size
            for m in range(0, padded, block):
                _weigh(p, values, out, m, low, high, size, block, vectors, head_dim, dtype, lanes)
        _scatter(a, row, row + 1, head, group, out, state, head_dim, lanes)

    return body


@kernel("attention_many", FIELDS)
def attention_many(dtype: str, head_dim: int, group: int, lanes: int, rows: int) -> Body:
    """``attention`` for ``rows`` rows at a time and all heads; chunk = row // ``rows``.

    Rows of one sequence share every page of keys and values that is read.
    """
    lanes, size = gcd(head_dim, lanes), ELEMENT_BYTES[dtype]
    block, tokens, vectors, padded = _blocking(group * rows, head_dim, lanes)
    wide, narrow, pairs = padded * head_dim * 4, padded * PAGE_TOKENS * 4, padded * 8

    def body(a: int, chunk: int) -> None:
        q, out, p, state = scratch(wide), scratch(wide), scratch(narrow), scratch(pairs)
        limit = min(word(word(a, ROWS), 0), (chunk + 1) * rows)
        row = chunk * rows
        while row < limit:
            stop = _same_sequence(a, row, limit)
            count = (stop - row) * group
            used = (count + block - 1) // block * block
            begin, end = _visible(a, row), int_at(word(a, POSITIONS), stop - 1) + 1
            for head in range(word(a, KV_HEADS)):
                _gather(a, row, stop, head, group, used, q, out, state, head_dim, lanes)
                for page in range(begin // PAGE_TOKENS, (end + PAGE_TOKENS - 1) // PAGE_TOKENS):
                    slot = _slot(a, row, page, head)
                    base = page * PAGE_TOKENS
                    low, high = max(0, begin - base), min(PAGE_TOKENS, end - base)
                    keys = word(a, KEYS) + slot * head_dim * size
                    for m in range(0, used, block):
                        _scores(q, keys, p, m, high, size, block, tokens, head_dim, dtype, lanes)
                    for m in range(count):
                        mine = row + m // group
                        first = max(0, _visible(a, mine) - base)
                        last = min(PAGE_TOKENS, int_at(word(a, POSITIONS), mine) + 1 - base)
                        _soften(a, slot, p, out, state, m, first, last, size, head_dim, lanes)
                    values = word(a, VALUES) + slot * head_dim * size
                    for m in range(0, used, block):
                        _weigh(
                            p,
                            values,
                            out,
                            m,
                            low,
                            high,
                            size,
                            block,
                            vectors,
                            head_dim,
                            dtype,
                            lanes,
                        )
                _scatter(a, row, stop, head, group, out, state, head_dim, lanes)
            row = stop

    return body


def _blocking(queries: int, head_dim: int, lanes: int) -> tuple[int, int, int, int]:
    """Queries a register block, tokens and value vectors beside them, and padded queries."""
    block = 4 if queries > 2 else queries
    vectors = gcd(head_dim // lanes, 8 // block)
    return block, 8 // block, vectors, -(-queries // block) * block


@njit
def _visible(a, row):  # type: ignore[no-untyped-def]
    """First position that a row sees."""
    if word(a, WINDOW) == 0:
        return 0
    return max(0, int_at(word(a, POSITIONS), row) - word(a, WINDOW) + 1)


@njit
def _same_sequence(a: int, row: int, limit: int) -> int:
    """End of the run of rows that belong to the sequence of ``row``."""
    stop = row + 1
    sequences = word(a, SEQUENCES)
    while stop < limit and int_at(sequences, stop) == int_at(sequences, row):
        stop += 1
    return stop


@njit
def _slot(a, row, page, head):  # type: ignore[no-untyped-def]
    """Index of a page's first token in the layer's pool, counted in heads."""
    sequence = int_at(word(a, SEQUENCES), row)
    stored = int_at(word(a, PAGE_TABLE), sequence * word(a, PAGES) + page)
    return (stored * word(a, PAGE_HEADS) + head) * PAGE_TOKENS


@njit(inline="always")
def _gather(a, row, stop, head, group, used, q, out, state, head_dim, lanes):  # type: ignore[no-untyped-def]
    """Copies the scaled queries of some rows, and clears ``used`` outputs and states."""
    factor = splat(float_at(word(a, SCALE), 0), "f32", lanes)
    zero = splat(float32(0), "f32", lanes)
    count = (stop - row) * group
    for m in range(used):
        heads = word(a, Q) + ((row + m // group) * word(a, Q_STRIDE)) * 4
        source = heads + (head * group + m % group) * head_dim * 4
        for index in range(0, head_dim * 4, lanes * 4):
            place = m * head_dim * 4 + index
            store(out + place, zero)
            store(q + place, load(source + index, "f32", lanes) * factor if m < count else zero)
        set_float(state, 2 * m, float32(LOWEST))
        set_float(state, 2 * m + 1, float32(0))


@njit(inline="always")
def _scores(q, keys, p, m, high, size, block, tokens, head_dim, dtype, lanes):  # type: ignore[no-untyped-def]
    """Scores of ``block`` queries against the first ``high`` tokens of a page, rounded up."""
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


@njit
def _fill(x, first, last, value):  # type: ignore[no-untyped-def]
    """Sets float32 elements ``first .. last - 1``."""
    for index in range(first, last):
        set_float(x, index, value)


@njit(inline="always")
def _multiply(x, y, lanes):  # type: ignore[no-untyped-def]
    """``x *= y`` for the float32 of one page."""
    for index in range(0, PAGE_TOKENS * 4, lanes * 4):
        store(x + index, load(x + index, "f32", lanes) * load(y + index, "f32", lanes))


@njit(inline="always")
def _soften(a, slot, scores, outs, states, m, first, last, size, head_dim, lanes):  # type: ignore[no-untyped-def]
    """Turns query ``m``'s scores of a page into weights and updates its running sums.

    Tokens outside ``first .. last - 1`` get weight zero. A state is the running maximum and the
    sum of weights.
    """
    p, state = scores + m * PAGE_TOKENS * 4, states + m * 8
    if first >= last:
        _fill(p, 0, PAGE_TOKENS, float32(0))
        return
    if size == 1:
        _multiply(p, word(a, KEY_SCALES) + slot * 4, lanes)
    _fill(p, 0, first, float32(LOWEST))
    _fill(p, last, PAGE_TOKENS, float32(LOWEST))
    top = splat(float_at(state, 0), "f32", lanes)
    for index in range(0, last * 4, lanes * 4):
        top = maximum(top, load(p + index, "f32", lanes))
    highest = reduce_max(top)
    top = splat(highest, "f32", lanes)
    for index in range(0, last * 4, lanes * 4):
        store(p + index, exp(load(p + index, "f32", lanes) - top))
    _fill(p, 0, first, float32(0))
    _fill(p, last, PAGE_TOKENS, float32(0))
    total = splat(float32(0), "f32", lanes)
    for index in range(0, last * 4, lanes * 4):
        total = total + load(p + index, "f32", lanes)
    _raise(state, outs + m * head_dim * 4, highest, reduce_add(total), head_dim, lanes)
    if size == 1:
        _multiply(p, word(a, VALUE_SCALES) + slot * 4, lanes)


@njit(inline="always")
def _raise(state, out, highest, total, head_dim, lanes):  # type: ignore[no-untyped-def]
    """Adds a page's sum of weights; rescales what was summed under a lower maximum."""
    before = float_at(state, 0)
    if highest > before:
        factor = exp(splat(before - highest, "f32", lanes))
        for index in range(0, head_dim * 4, lanes * 4):
            store(out + index, load(out + index, "f32", lanes) * factor)
        set_float(state, 0, highest)
        total += float_at(state, 1) * reduce_max(factor)
    else:
        total += float_at(state, 1)
    set_float(state, 1, total)


@njit(inline="always")
def _weigh(p, values, out, m, low, high, size, block, vectors, head_dim, dtype, lanes):  # type: ignore[no-untyped-def]
    """Adds the weighted values of tokens ``low .. high - 1`` to the outputs of some queries."""
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
def _scatter(a, row, stop, head, group, out, state, head_dim, lanes):  # type: ignore[no-untyped-def]
    """Divides by the sums of weights and stores the outputs of some rows."""
    for m in range((stop - row) * group):
        target = word(a, OUT) + (row + m // group) * word(a, OUT_STRIDE) * 4
        target += (head * group + m % group) * head_dim * 4
        inverse = splat(float32(1) / float_at(state, 2 * m + 1), "f32", lanes)
        for index in range(0, head_dim * 4, lanes * 4):
            value = load(out + m * head_dim * 4 + index, "f32", lanes)
            store(target + index, value * inverse)
