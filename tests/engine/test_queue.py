"""What a sequence has room for besides the next call."""

from __future__ import annotations

import pytest

from edgerun.engine.queue import Queue
from edgerun.engine.scheduler import Part
from edgerun.engine.sequence import Ending, Sequence
from edgerun.state import RecurrentState, SequenceStore, State, same_attention
from edgerun.state.paged import PAGE_TOKENS
from edgerun.state.spec import RecurrentArray

FIXED = (RecurrentState("past_key_values.0", (RecurrentArray("matrix", (2, 4)),)),)


@pytest.mark.parametrize(
    ("states", "cached", "rows", "spare"),
    [
        (same_attention(1, 1, 8), 0, 1, PAGE_TOKENS - 1),
        (same_attention(1, 1, 8), 60, 1, 3),
        (same_attention(1, 1, 8), 60, 4, 0),
        (same_attention(1, 1, 8), 60, 5, PAGE_TOKENS - 1),
        (FIXED, 60, 1, 0),
    ],
)
def test_pages_are_whole(states: tuple[State, ...], cached: int, rows: int, spare: int) -> None:
    sequence = Sequence([1] * (cached + rows), Ending(999), None)
    sequence.cached = cached
    assert Queue(SequenceStore(states, 256)).spare_tokens(Part(sequence, rows)) == spare
