"""Cuts a batch into units of attention, and puts partial results together.

What units are, and why, is said in ``units.py``.
"""

from __future__ import annotations

from numba import int64, njit

from edgerun.kernels.attention.parts import RESULTS, clear, finish, merge, visible_from
from edgerun.kernels.attention.units import (
    COUNTS,
    PAGE_TOKENS,
    PARTS,
    ROW_BLOCK,
    ROW_BLOCKS,
    ROW_INTS,
    ROW_NEXT,
    ROW_SLOT,
    SINGLE,
    SPLIT,
    STACKED,
    TURNED,
    TURNED_INTS,
    TURNED_PAGE,
    TURNED_ROW,
    UNIT_END,
    UNIT_INTS,
    UNIT_PAGE,
    UNIT_ROW,
    UNIT_ROWS,
    UNIT_TURNED,
    UNIT_TURNED_END,
)
from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.word import int_at, set_int, set_word, word


@kernel(
    "attention_plan",
    "rows:i64[1] positions:i32[rows] sequences:i32[rows] page_table:cache pages:cache window stack"
    f" threads kv_heads capacity counts:i64[{COUNTS}] single:i32[capacity + rows, {UNIT_INTS}]"
    f" stacked:i32[capacity + rows, {UNIT_INTS}] room"
    f" turned_pages:i32[room, {TURNED_INTS}] row_blocks:i32[rows, {ROW_INTS}]",
)
def attention_plan(block: int) -> Body:
    """Writes the units of a batch and, at ``counts``, how many there are; one chunk.

    A run is the rows of one sequence. Blocks of ``block`` pages are units of a run of at most
    ``stack`` rows, while there is room for partial results: rows beyond ``capacity`` of them
    are a unit each, with all pages. ``room`` pages, at most, that several units of a run read are
    listed, to be turned once for all of them. Each unit is ``kv_heads`` chunks for ``threads``.
    """

    def body(a: Arguments, chunk: int) -> None:
        for index in range(COUNTS):
            set_word(a.counts, index, 0)
        # int64(0) rather than 0, here and below: Numba compiles a function once more for a literal.
        rows, size, row = word(a.rows, 0), int64(block), int64(0)
        _place_rows(a, rows, size)
        while row < rows:
            stop = _run_end(a, row, rows)
            if stop - row > a.stack:
                _stack_prompt(a, row, stop)
            else:
                while stop < rows and _run_end(a, stop, rows) - stop <= a.stack:
                    stop = _run_end(a, stop, rows)
                _cut_blocks(a, row, stop, size)
            row = stop

    return body


@njit
def _run_end(a, row, rows):  # type: ignore[no-untyped-def]
    """End of the rows that belong to the sequence of ``row``."""
    sequences, stop = a.sequences, row + 1
    while stop < rows and int_at(sequences, stop) == int_at(sequences, row):
        stop += 1
    return stop


@njit
def _first_page(a, row):  # type: ignore[no-untyped-def]
    position = int_at(a.positions, row)
    return visible_from(position, a.window) // PAGE_TOKENS


@njit
def _end_page(a, row):  # type: ignore[no-untyped-def]
    return int_at(a.positions, row) // PAGE_TOKENS + 1


@njit
def _place_rows(a, rows, size):  # type: ignore[no-untyped-def]
    """Says where each row's partial results go."""
    slots, row = int64(0), int64(0)
    while row < rows:
        stop = _run_end(a, row, rows)
        for member in range(row, stop):
            first, blocks = int64(0), int64(1)
            if stop - row <= a.stack:
                first = _first_page(a, member) // size
                blocks = (_end_page(a, member) - 1) // size - first + 1
            if slots + blocks > a.capacity:
                blocks = int64(1)
            place = a.row_blocks + member * ROW_INTS * 4
            set_int(place, ROW_SLOT, slots)
            set_int(place, ROW_BLOCK, first)
            set_int(place, ROW_NEXT, first)
            set_int(place, ROW_BLOCKS, blocks)
            if blocks > 1:
                slots += blocks
                set_word(a.counts, SPLIT, rows)
        row = stop


@njit
def _append(a, row, rows, page, end):  # type: ignore[no-untyped-def]
    kind = SINGLE if rows == 1 else STACKED
    units = a.single if rows == 1 else a.stacked
    count = word(a.counts, kind)
    unit = units + count * UNIT_INTS * 4
    set_int(unit, UNIT_ROW, row)
    set_int(unit, UNIT_ROWS, rows)
    set_int(unit, UNIT_PAGE, page)
    set_int(unit, UNIT_END, end)
    set_int(unit, UNIT_TURNED, 0)
    set_int(unit, UNIT_TURNED_END, 0)
    set_word(a.counts, kind, count + 1)
    return unit


@njit
def _stack_prompt(a, row, stop):  # type: ignore[no-untyped-def]
    """Stacks of rows, each with every page that one of them sees; the longest come first."""
    stack = a.stack
    stacks = (stop - row + stack - 1) // stack
    page, begin, count = _first_page(a, row), word(a.counts, TURNED), int64(0)
    if stacks > 1:
        count = min(_end_page(a, stop - 1) - page, a.room - begin)
    for index in range(count):
        entry = a.turned_pages + (begin + index) * TURNED_INTS * 4
        set_int(entry, TURNED_ROW, stop - 1)
        set_int(entry, TURNED_PAGE, page + index)
    set_word(a.counts, TURNED, begin + count)
    for index in range(stacks - 1, -1, -1):
        first = row + index * stack
        last = min(first + stack, stop)
        end = _end_page(a, last - 1)
        unit = _append(a, first, last - first, _first_page(a, first), end)
        set_int(unit, UNIT_TURNED, begin - page)
        set_int(unit, UNIT_TURNED_END, page + count)


@njit
def _cut_blocks(a, row, stop, size):  # type: ignore[no-untyped-def]
    """Units of all blocks of short runs, block by block; neighbours with equal pages share."""
    blocks, left = int64(0), int64(0)
    for member in range(row, stop):
        blocks = max(blocks, (_end_page(a, member) - 1) // size + 1)
        left += int_at(a.row_blocks + member * ROW_INTS * 4, ROW_BLOCKS)
    for block in range(blocks):
        first = row
        while first < stop:
            end = first + 1
            if _has_block(a, first, block, size):
                while (
                    end < stop
                    and end - first < a.stack
                    and _share_block(a, end - 1, end, block, size)
                ):
                    end += 1
                following = block + 1
                if end - first == 1:
                    most = left * a.kv_heads // (PARTS * a.threads)
                    following = _end_alone(a, row, first, stop, block, block + most, size)
                page = max(block * size, _first_page(a, first))
                last = min(following * size, _end_page(a, end - 1))
                _append(a, first, end - first, page, last)
                left -= (end - first) * (following - block)
                for member in range(first, end):
                    set_int(a.row_blocks + member * ROW_INTS * 4, ROW_NEXT, following)
            first = end
    for member in range(row, stop):
        if _is_whole(a, member, size):
            _append(a, member, 1, _first_page(a, member), _end_page(a, member))


@njit
def _end_alone(a, begin, row, stop, block, most, size):  # type: ignore[no-untyped-def]
    """End of the blocks up to ``most`` that a row shares with none beside it, from its next on."""
    following = block + 1
    while (
        following < most
        and _has_block(a, row, following, size)
        and not (row + 1 < stop and _share_block(a, row, row + 1, following, size))
        and not (
            row > begin
            and _has_block(a, row - 1, following, size)
            and _share_block(a, row - 1, row, following, size)
        )
    ):
        following += 1
    return following


@njit
def _is_whole(a, row, size):  # type: ignore[no-untyped-def]
    """Whether a row sees several blocks and there was no room for their partial results."""
    several = (_end_page(a, row) - 1) // size > _first_page(a, row) // size
    return several and int_at(a.row_blocks + row * ROW_INTS * 4, ROW_BLOCKS) == 1


@njit
def _has_block(a, row, block, size):  # type: ignore[no-untyped-def]
    """Whether a row sees a block that has no unit yet, and in one that may be shared."""
    sees = _first_page(a, row) < (block + 1) * size and block * size < _end_page(a, row)
    is_left = int_at(a.row_blocks + row * ROW_INTS * 4, ROW_NEXT) <= block
    return sees and is_left and not _is_whole(a, row, size)


@njit
def _share_block(a, row, other, block, size):  # type: ignore[no-untyped-def]
    """Whether two neighbours, the first of which sees a block, see the same pages of it."""
    if not _has_block(a, other, block, size):
        return False
    sequence = int_at(a.sequences, row)
    second = int_at(a.sequences, other)
    if sequence == second:
        return True
    start = max(block * size, _first_page(a, row))
    end = min((block + 1) * size, _end_page(a, row))
    if start != max(block * size, _first_page(a, other)):
        return False
    if end != min((block + 1) * size, _end_page(a, other)):
        return False
    table, pages = a.page_table, a.pages
    for page in range(start, end):
        if int_at(table, sequence * pages + page) != int_at(table, second * pages + page):
            return False
    return True


@kernel("attention_combine", RESULTS + " group head_dim")
def attention_combine(lanes: int) -> Body:
    """Merges the partial results of a row's blocks in order; chunk = row * kv_heads + kv_head.

    A partial result is ``group`` weighted sums of values ``[head_dim]``, then the running maximum
    and the sum of weights of each. Rows of one block are left alone. ``head_dim`` is a multiple
    of ``lanes``.
    """

    def body(a: Arguments, chunk: int) -> None:
        kv_heads, group, head_dim = a.kv_heads, a.group, a.head_dim
        size, wide = group * (head_dim + 2) * 4, head_dim * 4
        row, head = chunk // kv_heads, chunk % kv_heads
        place = a.row_blocks + row * ROW_INTS * 4
        blocks = int_at(place, ROW_BLOCKS)
        if blocks == 1:
            return
        state = scratch(8)
        first = a.partials + (int_at(place, ROW_SLOT) * kv_heads + head) * size
        for m in range(group):
            query = head * group + m
            out = a.out + (row * a.out_stride + query * head_dim) * 4
            clear(out, state, 1, head_dim, lanes)
            for block in range(blocks):
                part = first + block * kv_heads * size
                sums = part + (group * head_dim + 2 * m) * 4
                merge(out, state, part + m * wide, sums, head_dim, lanes)
            finish(a, query, out, out, state, head_dim, lanes)

    return body
