"""The store against a model of plain lists: any order of calls, no row in another's place."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edgerun.errors import Full, InputError
from edgerun.state import AttentionState, SequenceStore
from edgerun.state.memory import Memory
from edgerun.state.paged import PAGE_TOKENS

CONTEXT, SLOTS = 400, 4
LARGEST_VALUE = 1 << 23  # and one more is exact in float32
GEOMETRIES = {
    "one kind": [AttentionState(f"a{layer}", 1, 2, 2, 0, "fp32") for layer in range(2)],
    "windows": [
        AttentionState("full", 1, 2, 2, 0, "fp32"),
        AttentionState("near", 2, 1, 3, 70, "fp32"),
        AttentionState("far", 1, 2, 2, 200, "fp32"),
        AttentionState("both", 1, 2, 2, 0, "fp32", values_are_keys=True),
    ],
    "windows only": [AttentionState("near", 1, 1, 1, 100, "fp32")],
}


def parts_of(state: AttentionState) -> list[tuple[int, int]]:
    """What is added to numbers of keys, and of values, and their elements."""
    return [(0, state.key_dim), (0 if state.values_are_keys else 1, state.value_dim)]


@dataclass
class Row:
    """What was written for a token: a function of all ids so far, as keys and values are."""

    id: int
    value: int


@dataclass
class Sequence:
    rows: list[Row] = field(default_factory=list)
    version: int = 0

    def append(self, id_: int) -> None:
        before = self.rows[-1].value if self.rows else 0
        value = zlib.crc32(id_.to_bytes(4, "little"), before) % LARGEST_VALUE
        self.rows.append(Row(id_, value))


class StoreMachine(RuleBasedStateMachine):
    """Opens, appends to, forks, rewinds, closes and finds sequences at random."""

    states = GEOMETRIES["one kind"]
    pages = 1 << 20

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[int, Sequence] = {}
        self.written = 0
        self.free = 1 << 40

    @initialize(sessions=st.sampled_from([SLOTS, 2]), eviction=st.sampled_from(["lru", "lfu"]))
    def start(self, sessions: int, eviction: str) -> None:
        memory = Memory(lambda: self.free, spare_bytes=0)
        self.store = SequenceStore(self.states, CONTEXT, sessions, memory=memory, eviction=eviction)
        self.slots = sessions
        self.capacity = self.store.room().pages

    def some(self, which: int) -> int:
        return list(self.open)[which % len(self.open)]

    def took(self, slot: int, sequence: Sequence) -> None:
        assert slot not in self.open
        sequence.version = self.store.version(slot)
        self.open[slot] = sequence

    @precondition(lambda self: len(self.open) == self.slots)
    @rule()
    def open_one_too_many(self) -> None:
        with pytest.raises(InputError):
            self.store.open()

    @precondition(lambda self: len(self.open) < self.slots)
    @rule()
    def open_one(self) -> None:
        slot = self.store.open()
        assert self.store.length(slot) == 0
        self.took(slot, Sequence())

    @precondition(lambda self: self.open)
    @rule(
        which=st.integers(0, 9),
        tokens=st.integers(1, 150),
        alike=st.booleans(),
        named=st.sampled_from([True, True, False]),
    )
    def append(self, which: int, tokens: int, alike: bool, named: bool) -> None:
        slot = self.some(which)
        sequence = self.open[slot]
        start = len(sequence.rows)
        stop = min(start + tokens, CONTEXT)
        try:
            self.store.reserve(slot, stop)
        except Full:
            assert self.store.length(slot) == start
            return
        for position in range(start, stop):
            self.written += 1
            sequence.append(position if alike else self.written + 1000)
        for state in self.store.states:
            values = np.array([row.value for row in sequence.rows[start:]], np.float32)
            block = tuple(
                np.broadcast_to(values[:, None, None] + added, (stop - start, state.kv_heads, dim))
                for added, dim in parts_of(state)
            )
            self.store.write_block(state.name, slot, start, block)
        ids = [row.id for row in sequence.rows]
        self.store.commit(slot, stop, ids if named else ())

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 9), length=st.integers(0, CONTEXT))
    def rewind(self, which: int, length: int) -> None:
        slot = self.some(which)
        sequence = self.open[slot]
        asked = min(length, len(sequence.rows))
        remaining_tokens = self.store.rewind(slot, asked)
        assert remaining_tokens == asked if not self.windowed() else remaining_tokens <= asked
        del sequence.rows[remaining_tokens:]

    @precondition(lambda self: 0 < len(self.open) < self.slots)
    @rule(which=st.integers(0, 9), length=st.integers(0, CONTEXT))
    def fork(self, which: int, length: int) -> None:
        source = self.open[self.some(which)]
        asked = min(length, len(source.rows))
        slot, shared_tokens = self.store.fork(self.some(which), asked)
        assert shared_tokens == asked if not self.windowed() else shared_tokens <= asked
        self.took(slot, Sequence(source.rows[:shared_tokens]))

    @precondition(lambda self: len(self.open) < self.slots)
    @rule(length=st.integers(0, CONTEXT), other=st.integers(0, CONTEXT))
    def match(self, length: int, other: int) -> None:
        """What is found was written for these ids, by whichever sequence."""
        ids = [*range(min(length, other)), *([7] * max(0, other - length))]
        slot, matched_tokens = self.store.match(ids)
        assert matched_tokens <= len(ids)
        sequence = Sequence()
        for id_ in ids[:matched_tokens]:
            sequence.append(id_)
        self.took(slot, sequence)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 9))
    def close(self, which: int) -> None:
        slot = self.some(which)
        self.store.close(slot)
        del self.open[slot]

    @rule(megabytes=st.sampled_from([0, 1 << 20]))
    def memory_changes(self, megabytes: int) -> None:
        self.free = megabytes << 20

    def windowed(self) -> bool:
        return any(state.window for state in self.states)

    @invariant()
    def every_row_is_where_it_belongs(self) -> None:
        for slot, sequence in self.open.items():
            length = len(sequence.rows)
            assert self.store.length(slot) == length
            for state in self.store.states:
                first = max(0, length + 1 - state.window) if state.window else 0
                values = np.array([row.value for row in sequence.rows[first:]], np.float32)
                block = self.store.read_block(state.name, slot, first, length)
                for (added, _), vectors in zip(parts_of(state), block, strict=True):
                    expected = np.broadcast_to((values + added)[:, None, None], vectors.shape)
                    np.testing.assert_array_equal(vectors, expected)

    @invariant()
    def no_page_is_lost_or_counted_wrongly(self) -> None:
        self.store.room()  # takes back what nobody holds
        for pool in self.store._pools:
            table = pool.page_table
            users = np.bincount(table[table >= 0], minlength=len(pool._users))
            np.testing.assert_array_equal(users, pool._users)
            retained = list(pool._index._policy._idle)
            unused = np.flatnonzero(users[: pool._grown] == 0).tolist()
            assert sorted([*pool._free, *retained]) == unused
            assert not users[pool._grown :].any()

    def teardown(self) -> None:
        for slot in self.open:
            self.store.close(slot)
        self.free = 1 << 40
        assert self.store.room().pages == self.capacity
        assert self.store.room().slots == self.slots


def machine(name: str) -> type:
    kind = type("Machine", (StoreMachine,), {"states": GEOMETRIES[name]})
    kind.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
    return kind.TestCase


TestOneKind = machine("one kind")
TestWindows = machine("windows")
TestWindowsOnly = machine("windows only")
assert CONTEXT > 2 * PAGE_TOKENS
