"""Ternary linear layers by table lookup: many tokens at once, without multiplying.

Four ternary weights of a row, which lie in one byte of the stream layout, can add up their four
activations in 81 ways. All 81 sums are computed once, for ``tokens`` tokens side by side; every
weight row then needs one addition where multiplying needs four products and their sum. Tables
for 8 bytes (32 of K: a pass) stay in the caches next to the core. Table lookup for ternary
weights is what T-MAC does for one token and TeLLMe on an FPGA; here the table is wide instead.

Three kernels work one after the other:

- ``lookup_entries`` turns weight bytes into numbers of table entries, for all rows;
- ``lookup_columns`` transposes activations to int16 ``[blocks, padded K, tokens]``;
- ``lookup_row`` builds tables and adds, for one block of tokens and one range of rows.

Sums are int16 for as many passes as the activations' magnitudes allow, then added to int32. The
integer sums are exact and scaled as in ``linear_row``: results are equal bit for bit.
"""

from __future__ import annotations

from numba import float32, njit

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.intrinsics import prefetch
from edgerun.kernels.lang.simd import (
    absolute,
    cast,
    load,
    load_splat,
    mask_bits,
    reduce_max,
    shift_left,
    shift_right,
    splat,
    store,
)
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.word import float_at, int_at, word
from edgerun.kernels.linear.lookup_tiles import (
    BYTES,
    HALF,
    LANES,
    PAIR,
    SUMS,
    add_rows,
    fill_tables,
    store_pair,
    transpose_bytes,
    transpose_totals,
)
from edgerun.kernels.linear.outputs import finish
from edgerun.kernels.linear.rows import CODES, OUTPUTS, ROW_SCALES
from edgerun.kernels.linear.turns import rows_in_blocks

SAFE = 2**15 - 1 - 32 * 128  # magnitudes that one more pass cannot carry beyond int16
EIGHT = 8
LINE = 64
PANELS_AT_ONCE = 32  # whose weights are read side by side
COLUMNS = "columns:i16[-(-rows // tokens) * tokens, padded_k] padded_k"


@njit(inline="always")
def _entries(codes):  # type: ignore[no-untyped-def]
    """Base-3 numbers of the digits that the codes 1, 2 and 3 stand for; padding may be any."""
    codes = codes - mask_bits(codes | shift_right(codes, 1), 0x55)
    low, high = mask_bits(codes, 15), shift_right(codes, 4)
    low = low - shift_right(low, 2)  # d0 + 4 d1 becomes d0 + 3 d1
    high = high - shift_right(high, 2)
    return low + high + shift_left(high, 3)


@kernel(
    "lookup_entries",
    "codes:u8[panels, tiles, lanes] entries:u8[panels, tiles, lanes] panels tiles step rows:i64[1]"
    " least",
)
def lookup_entries(lanes: int, tokens: int) -> Body:
    """Weight bytes ``[panels, tiles, lanes]`` to uint8 ``entries[passes, rows, 8]``.

    An entry is the base-3 number that a byte's four codes are the digits of; two vectors make a
    pass. A chunk is ``step`` panels. Nothing is done for a batch that is too small for a block.
    """

    def body(a: Arguments, chunk: int) -> None:
        if rows_in_blocks(word(a.rows, 0), tokens, a.least) == 0:
            return
        panels, tiles, row_bytes = a.panels, a.tiles, a.tiles * lanes
        panel_bytes = lanes // 4 * BYTES
        first, last = chunk * a.step, min(panels, (chunk + 1) * a.step)
        for begin in range(first, last, PANELS_AT_ONCE):
            end = min(last, begin + PANELS_AT_ONCE)
            for tile in range(0, tiles, PAIR):
                target = a.entries + (tile // PAIR * panels + begin) * panel_bytes
                for panel in range(begin, end):
                    source = a.codes + panel * row_bytes + tile * lanes
                    left, right = load(source, "u8", lanes), load(source + lanes, "u8", lanes)
                    store_pair(_entries(left), _entries(right), target)
                    prefetch(source + LINE)  # what the next needs: nothing else asks for it
                    target += panel_bytes

    return body


@kernel("lookup_columns", f"rows:i64[1] x:i8[rows, padded_k; x_stride] x_stride {COLUMNS} least")
def lookup_columns(tokens: int) -> Body:
    """int8 ``x[rows, x_stride]`` to int16 ``columns[blocks, padded_k, tokens]``.

    A chunk is 16 rows of the batch; those that it lacks count as zero.
    """

    def body(a: Arguments, chunk: int) -> None:
        rows, stride, padded_k = word(a.rows, 0), a.x_stride, a.padded_k
        first = chunk * LANES
        if first >= rows_in_blocks(rows, tokens, a.least):
            return
        source = a.x + first * stride
        target = a.columns + (first // tokens * tokens * padded_k + first % tokens) * 2
        missing = first + LANES > rows
        spare = scratch(256)
        for k in range(0, padded_k, LANES):
            start, step = source + k, stride
            if missing:
                for row in range(LANES):
                    codes = splat(0, "i8", LANES)
                    if first + row < rows:
                        codes = load(source + row * stride + k, "i8", LANES)
                    store(spare + row * LANES, codes)
                start, step = spare, LANES
            transpose_bytes(start, step, target + k * tokens * 2, tokens * 2)

    return body


@njit
def _store_totals(a, row, present, first, count, totals, tokens):  # type: ignore[no-untyped-def]
    """Scales and stores int32 ``totals[count, tokens]`` of the weight rows from ``first`` on."""
    square = scratch(256)
    whole = (min(first + count, a.n) - first) // EIGHT * EIGHT
    stride = a.out_stride
    for n in range(0, whole, EIGHT):
        scale = load(a.scales + (first + n) * 4, "f32", EIGHT)
        for part in range(0, present, EIGHT):
            transpose_totals(totals + (n * tokens + part) * 4, tokens * 4, square)
            for token in range(min(EIGHT, present - part)):
                target = a.out + ((row + part + token) * stride + first + n) * 4
                value = cast(load(square + token * EIGHT * 4, "i32", EIGHT), "f32")
                value = value * load_splat(a.x_scale + (row + part + token) * 4, EIGHT)
                value = value * scale
                if a.bias != 0:
                    value = value + load(a.bias + (first + n) * 4, "f32", EIGHT)
                if a.accumulate != 0:
                    value = value + load(target, "f32", EIGHT)
                store(target, value)
    for n in range(whole, count):
        scale_of_row = float_at(a.scales, first + n)
        for token in range(present):
            total = float32(int_at(totals, n * tokens + token))
            factor = float_at(a.x_scale, row + token)
            finish(a, row + token, first + n, total * factor * scale_of_row)


@njit(inline="always")
def _reach(columns, reach, fresh, tokens):  # type: ignore[no-untyped-def]
    """The largest magnitude that any row's sum may have after a pass over ``columns``.

    int16 ``reach[tokens]`` is what it was before, for each token; ``fresh`` makes that zero.
    """
    most = 0
    for part in range(0, tokens * 2, LANES * 2):
        total = splat(0, "i16", LANES)
        if not fresh:
            total = load(reach + part, "i16", LANES)
        for column in range(4 * BYTES):
            place = columns + column * tokens * 2 + part
            total = total + absolute(load(place, "i16", LANES))
        store(reach + part, total)
        most = max(most, reduce_max(cast(total, "i32")))
    return most


@njit
def _share(panels, coarse, fine, early, chunk):  # type: ignore[no-untyped-def]
    """The block of a chunk, and its range of panels: ``coarse`` in the first ``early`` blocks."""
    block, step, ranges = 0, coarse, (panels + coarse - 1) // coarse
    if chunk >= early * ranges:
        chunk -= early * ranges
        block, step, ranges = early, fine, (panels + fine - 1) // fine
    first = chunk % ranges * step
    return block + chunk // ranges, first, min(panels, first + step)


@kernel(
    "lookup_row",
    f"{OUTPUTS} {CODES} {ROW_SCALES} {COLUMNS} x_scale:f32[rows] coarse_step late_blocks least",
)
def lookup_row(lanes: int, tokens: int, cells: int) -> Body:
    """``linear_row`` for ternary weights and the first ``rows_in_blocks`` rows of a batch.

    ``codes`` are the entries of ``lookup_entries``, ``columns`` come from ``lookup_columns``;
    a chunk is a range of weight rows for one block. Ranges are long, ``coarse_step`` panels, so
    that a table serves many rows; those of the last ``late_blocks`` blocks are shorter, ``step``
    panels, so that threads end together. A range times ``tokens`` is at most ``cells``.
    """
    entry, panel_rows = tokens * 2, lanes // 4
    table_bytes, narrow_bytes, wide_bytes = BYTES * SUMS * entry, cells * 2, cells * 4

    def body(a: Arguments, chunk: int) -> None:
        rows, panels = word(a.rows, 0), a.panels
        looked_up = rows_in_blocks(rows, tokens, a.least)
        early = max(0, (looked_up + tokens - 1) // tokens - a.late_blocks)
        block, begin, end = _share(panels, a.coarse_step, a.step, early, chunk)
        row, first, count = block * tokens, begin * panel_rows, (end - begin) * panel_rows
        if row >= looked_up:
            return
        columns = a.columns + row * a.padded_k * 2
        table, sums, totals = scratch(table_bytes), scratch(narrow_bytes), scratch(wide_bytes)
        reach = scratch(entry)
        for index in range(0, count * tokens, LANES):
            store(totals + index * 4, splat(0, "i32", LANES))
        entries = a.codes + first * BYTES
        passes = a.tiles // PAIR
        fresh = True
        for index in range(passes):
            place = columns + index * 4 * BYTES * entry
            fill_tables(place, HALF * entry, table, tokens)
            fill_tables(place + 4 * HALF * entry, HALF * entry, table + HALF * entry, tokens)
            last = _reach(place, reach, fresh, tokens) > SAFE or index == passes - 1
            if fresh and last:
                add_rows(entries, sums, totals, table, count, tokens, 1, 1)
            elif fresh:
                add_rows(entries, sums, totals, table, count, tokens, 1, 0)
            elif last:
                add_rows(entries, sums, totals, table, count, tokens, 0, 1)
            else:
                add_rows(entries, sums, totals, table, count, tokens, 0, 0)
            fresh = last
            entries += panels * panel_rows * BYTES
        _store_totals(a, row, min(tokens, rows - row), first, count, totals, tokens)

    return body
