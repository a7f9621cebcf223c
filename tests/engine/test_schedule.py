"""What runs next, for sequences without a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.engine.scheduler import Limits, _shared, admit, schedule
from edgerun.engine.sequence import AHEAD, Ending, Lease, Scoring, Sequence, shared_prefix
from edgerun.state import Room

PAGE = 4


def sequence(prompt: int, said: int = 0, cached: int | None = None, *, first: int = 0) -> Sequence:
    """A sequence that runs if ``cached`` is given; distinct ``first`` ids share nothing."""
    seq = Sequence([first, *range(1, prompt)], Ending(1000), None)
    seq.ids += range(said)
    if cached is not None:
        seq.lease, seq.cached = Lease(), cached
    while said > 0 and seq.take():
        pass
    return seq


def replying(prompt: int, said: int) -> Sequence:
    return sequence(prompt, said, prompt + said - 1)


@dataclass
class Store:
    """Has pages for sequences; those that begin alike have pages in common."""

    slots: int
    pages: int
    sequences: list[Sequence] = field(default_factory=list)

    def room(self, preempted: list[Sequence]) -> Room:
        staying = [each for each in self.sequences if each not in preempted]
        freed = self.held(self.sequences) - self.held(staying)
        return Room(self.slots + len(preempted), self.pages + freed, PAGE)

    def held(self, sequences: list[Sequence]) -> int:
        """Pages of these: full ones by all ids before their end, others are a sequence's own."""
        full = {
            tuple(each.ids[:end])
            for each in sequences
            for end in range(PAGE, each.cached + 1, PAGE)
        }
        return len(full) + sum(each.cached % PAGE > 0 for each in sequences)


Situation: TypeAlias = tuple[list[Sequence], list[Sequence], list[Sequence], Store]


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Waiting, running and paused sequences in a store that may be nearly full."""
    lengths = st.integers(1, 30)
    waiting = [
        sequence(draw(lengths), said=draw(st.integers(0, 3)), first=draw(st.integers(0, 3)))
        for _ in range(draw(st.integers(0, 5)))
    ]
    running, paused = [], []
    for _ in range(draw(st.integers(0, 5))):
        prompt, said = draw(lengths), draw(st.integers(0, 5))
        whole = prompt + said
        cached = whole - 1 if said else draw(st.integers(0, whole - 1))
        seq = sequence(prompt, said, cached, first=draw(st.integers(0, 3)))
        (paused if said and draw(st.booleans()) else running).append(seq)
    store = Store(draw(st.integers(0, 3)), draw(st.integers(0, 12)), [*running, *paused])
    return waiting, running, paused, store


LIMITS = st.builds(Limits, st.integers(5, 40), st.integers(1, 20))


def shared(waiting: Sequence, running: list[Sequence]) -> int:
    """Tokens in pages that one who runs has for it; its last id is computed all the same."""
    lengths = [shared_prefix(waiting.ids[:-1], each.ids[: each.cached]) for each in running]
    return max(lengths, default=0) // PAGE * PAGE


@given(situations(), LIMITS)
def test_every_reply_has_a_row_and_prompts_no_more_than_their_share(
    situation: Situation, limits: Limits
) -> None:
    _, running, paused, store = situation
    parts, preempted = schedule(running, paused, store.room, limits)
    rows = {part.sequence: part.rows for part in parts}
    replies = [each for each in running if each.pending == 1]
    of_prompts = sum(part.rows for part in parts if part.sequence.pending > 1)
    assert all(1 <= count <= each.pending for each, count in rows.items())
    assert sum(rows.values()) <= limits.chunk_rows
    assert not replies or of_prompts <= limits.prompt_rows
    assert not rows.keys() & set(preempted)
    room = store.room(preempted)
    needs = [room.pages_for(each.cached, each.cached + count) for each, count in rows.items()]
    if sum(needs) > room.pages:  # the oldest alone, for whom everybody else had to go
        assert list(rows) == running[:1]
        assert set(preempted) == {*running[1:], *paused}
    if sum(room.pages_for(0, len(each.ids)) for each in running) <= store.pages:
        assert set(replies) <= rows.keys()
    assert not running or running[0] in rows


@given(situations(), LIMITS)
def test_pages_are_taken_from_the_paused_and_then_from_the_youngest(
    situation: Situation, limits: Limits
) -> None:
    _, running, paused, store = situation
    _, preempted = schedule(running, paused, store.room, limits)
    victims = [*reversed(paused), *reversed(running)]
    assert preempted == victims[: len(preempted)]
    assert not running or running[0] not in preempted


@given(situations(), LIMITS)
def test_nobody_is_overtaken_and_all_that_is_admitted_fits(
    situation: Situation, limits: Limits
) -> None:
    waiting, running, paused, store = situation
    admitted, preempted = admit(waiting, running, paused, store.room, limits)
    assert preempted == paused[::-1][: len(preempted)]
    places = [waiting.index(each) for each in admitted]
    assert places == sorted(places)
    for place, each in enumerate(waiting):
        if each not in admitted and any(place < other for other in places):  # for a prompt's pages
            ahead = [*running, *(waiting[other] for other in places if other < place)]
            assert any(shared_prefix(each.ids, other.ids) >= PAGE for other in ahead)
    if waiting and not running and (store.slots or paused):
        assert admitted
    if len(admitted) + len(running) > 1:
        assert len(admitted) <= store.slots + len(preempted)
        staying = [each for each in paused if each not in preempted]
        assert len(admitted) + len(running) + len(staying) <= limits.chunk_rows
        room = store.room(preempted)
        promised = sum(room.pages_for(each.cached, len(each.ids)) for each in running)
        needs = [room.pages_for(shared(each, running), len(each.ids) + 1) for each in admitted]
        if admitted:
            assert sum(needs) <= room.pages - promised


def test_prompts_get_what_replies_leave_of_a_call() -> None:
    running = [replying(5, 2), sequence(30, cached=0), replying(3, 1), sequence(9, cached=4)]
    parts, preempted = schedule(running, [], Store(0, 99).room, Limits(40, 12))
    assert [(running.index(part.sequence), part.rows) for part in parts] == [
        (0, 1),
        (1, 12),
        (2, 1),
    ]
    parts, _ = schedule(running[1::2], [], Store(0, 99).room, Limits(40, 12))
    assert [part.rows for part in parts] == [30, 5]
    assert preempted == []


def test_a_call_that_goes_layer_by_layer_takes_whole_prompts() -> None:
    """But of texts whose logits are all wanted, no more of these than other calls have."""
    limits = Limits(40, 1000, 1000)
    running = [replying(5, 2), sequence(300, cached=0), sequence(90, cached=4)]
    parts, _ = schedule(running, [], Store(0, 999).room, limits)
    assert [part.rows for part in parts] == [1, 300, 86]
    parts, _ = schedule(running, [], Store(0, 999).room, replace(limits, prompt_rows=12))
    assert [part.rows for part in parts] == [1, 12]
    texts = [Scoring(list(range(count))) for count in (30, 90, 70)]
    for each in texts:
        each.lease = Lease()
    parts, _ = schedule([*running[:2], *texts], [], Store(0, 999).room, limits)
    assert [part.rows for part in parts] == [1, 300, 30, 7, 1]
    assert sum(rows if each.wants_all else 1 for each, rows in parts) == 40


def test_a_prompt_waits_for_the_pages_of_one_like_it() -> None:
    first, like_it, other = sequence(20), sequence(18), sequence(20, first=7)
    room = Store(4, 99).room
    admitted, _ = admit([first, like_it, other], [], [], room, Limits(40, 40))
    assert admitted == [first, other]
    first.lease, first.cached = Lease(), 16
    assert admit([like_it], [first], [], room, Limits(40, 40))[0] == [like_it]


def test_pages_that_are_shared_are_neither_needed_nor_gained_twice() -> None:
    """A page more is needed for each, though each has five."""
    running, like_it = replying(18, 1), sequence(18)
    assert admit([like_it], [running], [], Store(1, 1).room, Limits(8, 8))[0] == [like_it]
    assert admit([like_it], [running], [], Store(1, 0).room, Limits(8, 8))[0] == []
    paused = [replying(18, 1), replying(18, 1)]
    store = Store(1, 0, [running, *paused])
    assert store.room(paused).pages == 2
    needs_three = sequence(10, first=7)
    admitted = admit([needs_three], [running], paused, store.room, Limits(8, 8))
    assert admitted == ([], [])


def test_who_is_paused_makes_place_for_who_waits() -> None:
    paused, waiting = replying(5, AHEAD), sequence(3)
    assert admit([waiting], [], [paused], Store(0, 9).room, Limits(8, 8)) == ([waiting], [paused])
    assert admit([waiting], [], [paused], Store(1, 9).room, Limits(8, 8)) == ([waiting], [])


@pytest.mark.parametrize("slots", [0, 1])
def test_who_does_not_fit_waits_and_so_do_those_behind(slots: int) -> None:
    running = [replying(5, 2)]
    admitted = admit([sequence(50), sequence(1)], running, [], Store(slots, 9).room, Limits(8, 8))
    assert admitted == ([], [])
    too_long = sequence(50)  # for whom nobody can make place runs alone
    both = [too_long, sequence(1, first=9)]
    assert admit(both, [], [], Store(2, 9).room, Limits(8, 8)) == ([too_long], [])


class Read(list[int]):
    """Ids that count how many of them are read."""

    count = 0

    def __getitem__(self, key: Any) -> Any:
        Read.count += len(range(*key.indices(len(self)))) if isinstance(key, slice) else 1
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[int]:
        Read.count += len(self)
        return super().__iter__()


def test_who_waits_is_not_read_again_at_every_step() -> None:
    """Sixty with one long beginning took longer to look through than the model to compute."""
    prompts = [Read([*range(1, 2000), each]) for each in range(61)]
    first, *waiting = (Sequence(prompt, Ending(3000), None) for prompt in prompts)
    first.lease, room, limits = Lease(), Store(99, 99999).room, Limits(70, 70)
    assert admit(waiting, [first], [], room, limits) == ([], [])
    Read.count = 0
    for cached in range(1, 1992):
        first.cached = cached
        assert admit(waiting, [first], [], room, limits) == ([], [])
    assert Read.count == 0
    first.cached = 1999
    assert admit(waiting, [first], [], room, limits) == (waiting, [])
    assert Read.count == 0
    for said in range(20):
        first.ids.append(said)
        admit(waiting, [first], [], room, limits)
    assert Read.count == 20


@given(situations(), st.sampled_from([0, 1, PAGE, 7]))
def test_shared_pages_are_those_of_the_longest_common_beginning(
    situation: Situation, page: int
) -> None:
    """Also after ids were added."""
    waiting, running, *_ = situation
    for _ in range(2):
        for each in waiting:
            ids = each.ids[: each.logits_from]
            there = [min(shared_prefix(ids, other.ids), other.cached) for other in running]
            coming = [shared_prefix(ids, other.ids) for other in running if other.pending > 1]
            lengths = (max(there, default=0), max(coming, default=0))
            whole = tuple(length // page * page if page else 0 for length in lengths)
            assert _shared(each, running, page) == whole
        for each in [*waiting, *running]:
            each.ids += [len(each.ids), len(each.ids) + 1, 3]


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_shared_prefix_is_the_longest(left: list[int], right: list[int]) -> None:
    length = shared_prefix(left, right)
    assert left[:length] == right[:length]
    assert left[length : length + 1] != right[length : length + 1] or length == len(left)
