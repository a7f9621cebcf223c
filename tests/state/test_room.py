"""What a store says it has room for is what can be taken, whoever shares what with whom."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.engine.sequence import Ending, Lease, Sequence
from edgerun.engine.slots import Slots
from edgerun.errors import Full
from edgerun.state import AttentionState, SequenceStore, same_attention
from edgerun.state.capacity import sequence_bytes
from edgerun.state.memory import Memory
from edgerun.state.paged import PAGE_TOKENS

CONTEXT, SLOTS, BUSY = 4 * PAGE_TOKENS, 12, 5
LENGTHS = st.integers(0, CONTEXT)
STATES = {
    "one pool": same_attention(1, 1, 1, "fp32"),
    "two pools": [
        AttentionState("narrow", 1, 1, 1, 0, "fp32"),
        AttentionState("wide", 2, 1, 2, 0, "fp32"),
    ],
    "a window": same_attention(1, 1, 1, "fp32", PAGE_TOKENS),
    "windows": [
        AttentionState("full", 1, 1, 1, 0, "fp32"),
        AttentionState("near", 2, 1, 2, PAGE_TOKENS, "fp32"),
    ],
}


class Crowd:
    """Sequences that begin alike, in a store with memory for few pages."""

    def __init__(self, kind: str, pages: int) -> None:
        states = STATES[kind]
        limit = sequence_bytes(states, PAGE_TOKENS) * pages
        memory = Memory(lambda: limit - self.written(), spare_bytes=0)
        self.store: SequenceStore | None = None
        self.store = SequenceStore(states, CONTEXT, SLOTS, memory=memory)
        self.open: list[int] = []

    def written(self) -> int:
        pools = self.store._pools if self.store else []
        return sum(pool._grown * pool.page_bytes for pool in pools)

    def write(self, slot: int, length: int, kind: int) -> None:
        """Up to ``length`` tokens, of which three in four are those of everybody."""
        ids = [0 if position % (3 * PAGE_TOKENS) else kind for position in range(CONTEXT)]
        if length > self.store.length(slot):
            try:
                self.store.reserve(slot, length)
            except Full:
                return
            self.store.commit(slot, length, ids)

    def change(self, what: str, which: int, length: int) -> None:
        slot = self.open[which % len(self.open)] if self.open else -1
        if what == "open" and len(self.open) < BUSY:
            self.open.append(self.store.match([which] + [0] * (length - 1))[0])
        elif self.open and what == "fork" and len(self.open) < BUSY:
            self.open.append(self.store.fork(slot, min(length, self.store.length(slot)))[0])
        elif self.open and what == "write":
            self.write(slot, length, which)
        elif self.open and what == "rewind":
            self.store.rewind(slot, length)
        elif self.open and what == "close":
            self.store.close(slot)
            self.open.remove(slot)

    def taken(self) -> tuple[int, int]:
        """Takes slots and pages until there are no more; returns how many."""
        slots = [self.store.open() for _ in range(self.store.room().slots)]
        pages = 0
        for slot in slots:
            for length in range(PAGE_TOKENS, CONTEXT + 1, PAGE_TOKENS):
                try:
                    self.store.reserve(slot, length)
                except Full:
                    return len(slots), pages
                pages += 1
        return len(slots), pages


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["open", "fork", "write", "write", "rewind", "close"]),
        st.integers(0, 1),
        LENGTHS,
    ),
    max_size=25,
)


@pytest.mark.parametrize("kind", STATES)
@settings(max_examples=60, deadline=None)
@given(pages=st.integers(4, 14), changes=CHANGES, gone=st.sets(st.integers(0, BUSY - 1)))
def test_room_is_what_can_be_taken(kind, pages, changes, gone) -> None:
    """And the room without some sequences is what can be taken when they are closed.

    Where layers see a window, others see all, and memory is scarce, it is what could be.
    """
    crowd = Crowd(kind, pages)
    for change in changes:
        crowd.change(*change)
    leaving = [slot for place, slot in enumerate(crowd.open) if place in gone]
    promised = crowd.store.room(leaving)
    for slot in leaving:
        crowd.store.close(slot)
    assert crowd.store.room() == promised
    slots, taken = crowd.taken()
    pages = min(promised.pages, slots * CONTEXT // PAGE_TOKENS)
    assert slots == promised.slots
    assert taken <= pages if kind == "windows" else taken == pages


def test_what_retained_sequences_share_is_counted_once() -> None:
    """And not at all where one that goes on shares it, too."""
    crowd = Crowd("one pool", 8)
    slots, ids = Slots(crowd.store), [1] * (3 * PAGE_TOKENS)
    sequences = [Sequence([*ids, number], Ending(CONTEXT), None) for number in range(3)]
    for sequence in sequences:
        slots.give(sequence)
        length = len(sequence.ids)
        crowd.store.reserve(sequence.lease.slot, length)
        crowd.store.commit(sequence.lease.slot, length, sequence.ids)
        sequence.cached = length
    assert crowd.store.room().pages == 8 - 3 - 3
    for sequence in sequences[:2]:
        sequence.is_retained = True
        slots.end(sequence)
    assert (slots.room().slots, slots.room().pages) == (SLOTS - 1, 8 - 3 - 1)
    assert slots.room([sequences[2]]).pages == 8
    assert isinstance(sequences[2].lease, Lease)
