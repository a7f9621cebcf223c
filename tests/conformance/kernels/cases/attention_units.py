"""Cases of cutting batches into units of attention."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edgerun.kernels.attention.units import (
    BLOCK_PAGES,
    PARTS,
    ROW_BLOCK,
    ROW_BLOCKS,
    ROW_SLOT,
    SINGLE,
    SPLIT,
    STACKED,
)
from edgerun.state import Batch, SequenceStore, same_attention
from tests.conformance.kernels.cases.attention import PAGE_TOKENS, STACK, Counted
from tests.conformance.kernels.harness import Call, cases_of

KV_HEADS = 4
# Cached tokens of sequences, and how many of them all have in common.
PLANS = [
    ([(0, 1)], 0),
    ([(511, 1)], 0),
    ([(512, 1)], 0),
    ([(9000, 1)], 0),
    ([(9000, 1), (3, 1), (700, 3), (600, 40), (1, 1)], 0),
    ([(1300, 1), (1400, 1), (1030, 1), (2000, 4)] * 3, 1029),
    ([(200_000, 1)] * 2, 0),
]


def forked(parts: list[tuple[int, int]], common: int) -> tuple[SequenceStore, Batch]:
    """Sequences whose first tokens are in common, and the batch that continues them."""
    cache = SequenceStore(same_attention(1, 1, 1), max(sum(part) for part in parts), len(parts))
    batches = []
    for cached, tokens in parts:
        sequence = cache.fork(0, common)[0] if batches and common else cache.open()
        cache.reserve(sequence, cached + tokens)
        cache.commit(sequence, cached)
        batches.append(Batch.of([0] * tokens, cached, sequence))
    return cache, Batch.join(batches)


@cases_of("attention_plan", plan=PLANS, window=[0, 50, 700])
@cases_of("attention_plan", plan=PLANS[1:], window=[0], threads=[1, 8])
def attention_plan(plan: tuple[list[tuple[int, int]], int], window: int, threads: int = 2) -> Call:
    parts, common = plan
    cache, batch = forked(parts, common)
    counted = Counted(batch, cache, window, kv_heads=KV_HEADS, threads=threads)
    units, page_table = counted.units, cache.pool(cache.states[0].name).page_table

    def check() -> None:
        check_pages(counted, page_table, window)
        slots = [slot for _, of_unit in partial_results(counted) for slot in of_unit]
        assert sorted(slots) == list(range(len(slots)))
        assert len(slots) == sum(int(n) for n in units.rows[:, ROW_BLOCKS] if n > 1)
        assert counted.counts[SPLIT] == (batch.rows if slots else 0)
        # A thread's share is not gone with one unit, so that all end together.
        most = int(units.rows[:, ROW_BLOCKS].sum()) * KV_HEADS // (PARTS * threads)
        longest = [len(of_unit) for rows, of_unit in partial_results(counted) if rows == 1]
        assert all(blocks <= max(1, most) for blocks in longest)
        if len(parts) == 1:
            assert longest == sorted(longest, reverse=True)
            assert threads == 1 or longest[-1:] in ([], [1])
        if common and not window:
            shared = units.stacked[: counted.counts[STACKED]]
            assert (shared[:, 1] == STACK).sum() >= common // (PAGE_TOKENS * BLOCK_PAGES)

    fields = dict(zip(units.names, units.arguments.tolist(), strict=True))
    # Arrays instead of their addresses, for those who run the call in other memory than ours.
    fields |= {"positions": batch.positions, "sequences": batch.sequences}
    fields |= {
        "rows": counted.rows,
        "page_table": page_table,
        "counts": counted.counts,
        "single": units.single,
        "stacked": units.stacked,
        "turned_pages": units.turned,
        "row_blocks": units.rows,
    }
    return Call({"block": BLOCK_PAGES}, fields, 0, check, 1)


def units_of(counted: Counted) -> Iterator[tuple[int, int, int, int]]:
    """First row, rows, first page and end of pages of all units."""
    for table, kind in ((counted.units.single, SINGLE), (counted.units.stacked, STACKED)):
        for row, rows, page, end, *_ in table[: counted.counts[kind]].tolist():
            assert rows == 1 if kind == SINGLE else 1 < rows <= STACK
            yield row, rows, page, end


def check_pages(counted: Counted, page_table: np.ndarray, window: int) -> None:
    """Every row meets each page that it sees once, and shares only pages that are its own."""
    batch = counted.batch
    tables = page_table[batch.sequences]
    ends = batch.positions // PAGE_TOKENS + 1
    starts = np.maximum(batch.positions - window + 1, 0) // PAGE_TOKENS if window else 0 * ends
    seen = [np.zeros(page_table.shape[1], int) for _ in range(batch.rows)]
    for row, rows, page, end in units_of(counted):
        # No page is visited that no row of the unit sees.
        assert page >= starts[row : row + rows].min()
        assert end <= ends[row : row + rows].max()
        for index in range(row, row + rows):
            first, last = max(page, starts[index]), min(end, ends[index])
            assert (tables[index, first:last] == tables[row + rows - 1, first:last]).all()
            seen[index][page:end] += 1
    for index in range(batch.rows):
        assert (seen[index][starts[index] : ends[index]] == 1).all()


def partial_results(counted: Counted) -> Iterator[tuple[int, range]]:
    """Rows of each unit and, for each that leaves partial results, the slots of its blocks."""
    for row, rows, page, end in units_of(counted):
        for info in counted.units.rows[row : row + rows]:
            if info[ROW_BLOCKS] > 1:
                start = int(info[ROW_SLOT] - info[ROW_BLOCK])
                block, after = page // BLOCK_PAGES, -(-end // BLOCK_PAGES)
                assert rows == 1 or after == block + 1
                yield rows, range(start + block, start + after)
