"""What the attention kernels have in common: their arguments, queries, softmax and results.

The arrays of a page pool (``state/paged.py``) lie as ``[page, layer, kv_head, token, head_dim]``
and their address is that of the layer in page 0; ``page_heads`` heads lie from one page to the
next.
``page_table`` is int32 ``[sequences, pages]``. ``lanes`` is the number of float32 in a vector.
A *query* is one head of one row; the queries of a unit (``units.py``) that are computed together
with a key/value head are ``[rows, group]``: all that share it, or in float32 one of ``shares``
parts of these, which count as heads of their own.

A context is read in blocks of ``BLOCK_PAGES`` pages, counted from its beginning. Inside a block
softmax runs online, page by page; the results of blocks are merged from the first to the last.
Whether one unit reads all blocks or each has a unit of its own, the same numbers are added in the
same order: what a row gets does not depend by a bit on the rows that are computed with it.

What is done once a unit or a block is inlined by LLVM: Numba translates it once for all kernels of
a process, where it would translate what it inlines itself anew for each.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import float32, njit

from edgerun.kernels.attention.units import (
    BLOCK_PAGES,
    CACHED,
    CAPACITY,
    PAGE_TOKENS,
    ROW_BLOCK,
    ROW_BLOCKS,
    ROW_INTS,
    ROW_SLOT,
    UNIT_INTS,
    UNIT_ROW,
    UNIT_ROWS,
    UNIT_TURNED_END,
)
from edgerun.kernels.jit.declare import Arguments, Body
from edgerun.kernels.lang.simd import (
    fma,
    load,
    load_splat,
    maximum,
    reduce_add,
    reduce_max,
    splat,
    store,
)
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.vectormath import exp, tanh, within
from edgerun.kernels.lang.word import float_at, int_at, set_float, set_int

LOWEST = -3.0e38

RESULTS = (
    f"row_blocks:i32[rows, {ROW_INTS}] partials:f32[{CAPACITY}, kv_heads, group * (head_dim + 2)]"
    " out:f32[rows, kv_heads, group, head_dim; out_stride] out_stride kv_heads"
    " sinks?:f32[kv_heads, group]"
)
# Of all attention kernels.
ARGUMENTS = (
    "positions:i32[rows] sequences:i32[rows] q:f32[rows, kv_heads, group, head_dim; q_stride]"
    f" q_stride scale:f32[1] softcap?:f32[1] window units:i32[{CAPACITY}, {UNIT_INTS}]"
    f" {RESULTS} {CACHED}"
)

# Of those that may compute the queries of a key head in parts.
SHARED_ARGUMENTS = f"{ARGUMENTS} shares"


@njit
def visible_from(position, window):  # type: ignore[no-untyped-def]
    """First position that a row at ``position`` sees; a window of 0 means all."""
    return 0 if window == 0 else max(0, position - window + 1)


@njit
def slot_of(a, row, page, key_head):  # type: ignore[no-untyped-def]
    """Index of a page's first token in the layer's pool, counted in heads."""
    sequence = int_at(a.sequences, row)
    stored = int_at(a.page_table, sequence * a.pages + page)
    return (stored * a.page_heads + key_head) * PAGE_TOKENS


@njit(forceinline=True)
def gather(a, unit, head, group, used, q, head_dim, lanes):  # type: ignore[no-untyped-def]
    """Copies the scaled queries of a unit, and zeros up to ``used`` of them."""
    factor = splat(float_at(a.scale, 0), "f32", lanes)
    zero = splat(float32(0), "f32", lanes)
    row, count = int_at(unit, UNIT_ROW), int_at(unit, UNIT_ROWS) * group
    for m in range(used):
        heads = a.q + ((row + m // group) * a.q_stride) * 4
        source = heads + (head * group + m % group) * head_dim * 4
        for index in range(0, head_dim * 4, lanes * 4):
            place = m * head_dim * 4 + index
            store(q + place, load(source + index, "f32", lanes) * factor if m < count else zero)


@njit(forceinline=True)
def clear(out, state, queries, head_dim, lanes):  # type: ignore[no-untyped-def]
    """Sets results to those of no tokens."""
    zero = splat(float32(0), "f32", lanes)
    for m in range(queries):
        for index in range(0, head_dim * 4, lanes * 4):
            store(out + m * head_dim * 4 + index, zero)
        set_float(state, 2 * m, float32(LOWEST))
        set_float(state, 2 * m + 1, float32(0))


@njit(forceinline=True)
def merge(out, state, part, part_state, head_dim, lanes):  # type: ignore[no-untyped-def]
    """Adds the result of a later block of tokens to that of those before, for one query."""
    highest = max(float_at(state, 0), float_at(part_state, 0))
    ours = exp(splat(float_at(state, 0) - highest, "f32", lanes))
    theirs = exp(splat(float_at(part_state, 0) - highest, "f32", lanes))
    for index in range(0, head_dim * 4, lanes * 4):
        before, added = load(out + index, "f32", lanes), load(part + index, "f32", lanes)
        store(out + index, before * ours + added * theirs)
    total = float_at(state, 1) * reduce_max(ours) + float_at(part_state, 1) * reduce_max(theirs)
    set_float(state, 0, highest)
    set_float(state, 1, total)


@njit(forceinline=True)
def merge_block(out, state, part, part_state, queries, head_dim, lanes):  # type: ignore[no-untyped-def]
    """``merge`` for all queries of a unit; then the part begins anew."""
    for m in range(queries):
        place = m * head_dim * 4
        merge(out + place, state + m * 8, part + place, part_state + m * 8, head_dim, lanes)
    clear(part, part_state, queries, head_dim, lanes)


@njit(inline="always")
def end_of_block(page, last):  # type: ignore[no-untyped-def]
    """Whether a page is the last of its block, or of those before page ``last``."""
    return (page + 1) % BLOCK_PAGES == 0 or page + 1 == last


@njit(forceinline=True)
def finish(a, head, target, out, state, head_dim, lanes):  # type: ignore[no-untyped-def]
    """Stores the weighted mean of values of one query of a head."""
    share = float32(1) / float_at(state, 1)
    if a.sinks != 0:
        share = _share_beside(float_at(a.sinks, head), state, lanes)
    inverse = splat(share, "f32", lanes)
    for index in range(0, head_dim * 4, lanes * 4):
        store(target + index, load(out + index, "f32", lanes) * inverse)


@njit(forceinline=True)
def _share_beside(sink, state, lanes):  # type: ignore[no-untyped-def]
    """What the weights of a query are multiplied with, where a sink has its share of them."""
    highest = max(float_at(state, 0), sink)
    ours = reduce_max(exp(splat(float_at(state, 0) - highest, "f32", lanes)))
    others = reduce_max(exp(splat(sink - highest, "f32", lanes)))
    return ours / (float_at(state, 1) * ours + others)


@njit(forceinline=True)
def top_score(a, slot, p, state, first, last, factor, size, lanes, is_masked):  # type: ignore[no-untyped-def]
    """The highest of a page's scores and those before.

    Scores of tokens outside ``first .. last - 1`` become the lowest, unless ``is_masked`` says that
    there are none. Scales of int8 keys and ``factor`` go into the others, which are bounded then if
    scores have a bound, with an error of 2e-7 of it.
    """
    if a.softcap != 0:
        return _top_of_bounded(a, slot, p, state, first, last, factor, size, lanes)
    return _top_of(a, slot, p, state, first, last, factor, size, lanes, is_masked, False)


@njit
def _top_of_bounded(a, slot, p, state, first, last, factor, size, lanes):  # type: ignore[no-untyped-def]
    """A function of its own, so that the loop over other scores is not longer for it."""
    return _top_of(a, slot, p, state, first, last, factor, size, lanes, True, True)


@njit(forceinline=True)
def _top_of(  # type: ignore[no-untyped-def]
    a, slot, p, state, first, last, factor, size, lanes, is_masked, is_bounded
):
    every, lowest = splat(factor, "f32", lanes), splat(float32(LOWEST), "f32", lanes)
    top = splat(float_at(state, 0), "f32", lanes)
    bound = load_splat(a.softcap, lanes) if is_bounded else lowest
    for index in range(0, PAGE_TOKENS, lanes):
        score = load(p + index * 4, "f32", lanes)
        if size == 1:
            score = score * (load(a.key_scales + (slot + index) * 4, "f32", lanes) * every)
        if is_bounded:
            score = tanh(score / bound) * bound
        if is_masked:
            score = within(score, lowest, first - index, last - index)
        if is_masked or size == 1:
            store(p + index * 4, score)
        top = maximum(top, score)
    return reduce_max(top)


@njit(forceinline=True)
def weights_of(a, slot, p, highest, first, last, size, lanes, is_masked):  # type: ignore[no-untyped-def]
    """Turns scores into weights; returns their sum. Scales of int8 values then go into them.

    Weights of tokens outside ``first .. last - 1`` are zero, unless ``is_masked`` says that there
    are none.
    """
    top, zero = splat(highest, "f32", lanes), splat(float32(0), "f32", lanes)
    total = zero
    for index in range(0, PAGE_TOKENS, lanes):
        weight = exp(load(p + index * 4, "f32", lanes) - top)
        if is_masked:
            weight = within(weight, zero, first - index, last - index)
        total = total + weight
        if size == 1:
            weight = weight * load(a.value_scales + (slot + index) * 4, "f32", lanes)
            if is_masked:  # scales may be no numbers
                weight = within(weight, zero, first - index, last - index)
        store(p + index * 4, weight)
    return reduce_add(total)


@njit(inline="always")
def raise_sums(state, out, highest, total, head_dim, lanes):  # type: ignore[no-untyped-def]
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
def all_numbers(values, head_dim, lanes):  # type: ignore[no-untyped-def]
    """Whether the float32 of a query's result are neither infinite nor no number.

    A value that is none spoils all queries that a unit multiplies with it, so the first ones tell.
    """
    zero = splat(float32(0), "f32", lanes)
    total = zero
    for index in range(0, head_dim * 4, lanes * 4):
        total = fma(load(values + index, "f32", lanes), zero, total)
    return reduce_add(total) == float32(0)


def each_row_alone(attend: Callable[..., bool]) -> Body:
    """The kernel that computes units, and rows one by one where a unit has results of no use.

    ``attend(a, unit, head)`` computes a unit and says whether its results are numbers. A value that
    is none spoils all rows that are computed with it, since zero times it is none either, those
    that do not see it as well; alone it spoils those that do.
    """
    unit_bytes = UNIT_INTS * 4

    def body(a: Arguments, chunk: int) -> None:
        unit, head = a.units + chunk // a.kv_heads * UNIT_INTS * 4, chunk % a.kv_heads
        rows = int_at(unit, UNIT_ROWS)
        if attend(a, unit, head) or rows == 1:
            return
        alone = scratch(unit_bytes)
        for index in range(UNIT_INTS):
            set_int(alone, index, int_at(unit, index))
        set_int(alone, UNIT_ROWS, 1)
        set_int(alone, UNIT_TURNED_END, 0)  # those have values that a row may not see
        for row in range(rows):
            set_int(alone, UNIT_ROW, int_at(unit, UNIT_ROW) + row)
            attend(a, alone, head)

    return body


@njit(forceinline=True)
def scatter(a, unit, page, head, group, out, state, head_dim, lanes):  # type: ignore[no-untyped-def]
    """Stores the results of a unit: finished ones, or partial ones of the block of a page."""
    row = int_at(unit, UNIT_ROW)
    for m in range(int_at(unit, UNIT_ROWS) * group):
        source = out + m * head_dim * 4
        place = a.row_blocks + (row + m // group) * ROW_INTS * 4
        if int_at(place, ROW_BLOCKS) == 1:
            query = head * group + m % group
            target = a.out + ((row + m // group) * a.out_stride + query * head_dim) * 4
            finish(a, query, target, source, state + m * 8, head_dim, lanes)
        else:
            slot = int_at(place, ROW_SLOT) + page // BLOCK_PAGES - int_at(place, ROW_BLOCK)
            base = (slot * a.kv_heads + head) * group * (head_dim + 2)
            target = a.partials + (base + m % group * head_dim) * 4
            for index in range(0, head_dim * 4, lanes * 4):
                store(target + index, load(source + index, "f32", lanes))
            sums = a.partials + (base + group * head_dim) * 4
            set_float(sums, 2 * (m % group), float_at(state, 2 * m))
            set_float(sums, 2 * (m % group) + 1, float_at(state, 2 * m + 1))
