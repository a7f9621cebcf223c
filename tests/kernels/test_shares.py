"""How panels are divided among threads: each in one chunk, the long ones first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.kernels.linear.shares import OF, TAKEN, chunk_panels, count_chunks


def all_chunks(panels: int, step: int, threads: int) -> list[tuple[int, int]]:
    """First panel and end of every chunk."""
    count = count_chunks(panels, step, threads)
    return [chunk_panels.py_func(chunk, panels, step, threads) for chunk in range(count)]


@given(st.integers(1, 3000), st.integers(1, 40), st.integers(0, 64))
def test_every_panel_is_in_one_chunk(panels: int, step: int, threads: int) -> None:
    ranges = all_chunks(panels, step, threads)
    assert [begin for begin, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1][1] == panels
    sizes = [end - begin for begin, end in ranges]
    assert sizes == sorted(sizes, reverse=True)
    assert all(size % step == 0 for size in sizes[:-1])
    if threads == 0:
        assert set(sizes[:-1]) <= {step}


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_no_thread_takes_all_of_its_share_at_once(threads: int) -> None:
    ranges, panels = all_chunks(1024, 4, threads), 1024
    for index, (begin, end) in enumerate(ranges):
        left = panels - ranges[index // threads * threads][0]
        assert end - begin <= max(4, left * TAKEN // (OF * threads))
    assert ranges[0][1] > 1024 // threads // 2
    assert ranges[-1][1] - ranges[-1][0] <= 4
