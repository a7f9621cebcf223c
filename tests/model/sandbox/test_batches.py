"""Requests that go together: all of them, in order, and no more than have room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgerun.model.sandbox.batches import batches


@given(sizes=st.lists(st.integers(0, 30), max_size=20), limit=st.integers(0, 40))
def test_neighbours_go_together_as_far_as_they_have_room(sizes: list[int], limit: int) -> None:
    runs = [sizes[batch] for batch in batches(sizes, limit)]
    assert [size for run in runs for size in run] == sizes
    assert all(run and (len(run) == 1 or sum(run) <= limit) for run in runs)
    for run, following in zip(runs, runs[1:], strict=False):
        assert sum(run) + following[0] > limit
