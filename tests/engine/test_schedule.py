"""What runs next, for sequences without a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.engine.scheduler import Limits, admit, schedule
from edgerun.engine.sequence import AHEAD, Ending, Lease, Sequence, shared_prefix
from edgerun.state import Room

PAGE = 4


def sequence(prompt: int, said: int = 0, cached: int | None = None, *, first: int = 0) -> Sequence:
    """A sequence that runs if ``cached`` is given; distinct ``first`` ids share nothing."""
    made = Sequence([first, *range(1, prompt)], Ending(1000), None)
    made.ids += range(said)
    if cached is not None:
        made.lease, made.cached = Lease(), cached
    while said > 0 and made.take():
        pass
    return made


def replying(prompt: int, said: int) -> Sequence:
    return sequence(prompt, said, prompt + said - 1)


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Sequence], list[Sequence], list[Sequence], Room]:
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
        made = sequence(prompt, said, cached, first=draw(st.integers(0, 3)))
        (paused if said and draw(st.booleans()) else running).append(made)
    room = Room(draw(st.integers(0, 3)), draw(st.integers(0, 12)), PAGE)
    return waiting, running, paused, room


LIMITS = st.builds(Limits, st.integers(5, 40), st.integers(1, 20))


@given(situations(), LIMITS)
def test_every_reply_has_a_row_and_prompts_no_more_than_their_share(
    situation: tuple[list[Sequence], list[Sequence], list[Sequence], Room], limits: Limits
) -> None:
    _, running, paused, room = situation
    parts, preempted = schedule(running, paused, room, limits)
    rows = {part.sequence: part.rows for part in parts}
    replies = [each for each in running if each.pending == 1]
    of_prompts = sum(part.rows for part in parts if part.sequence.pending > 1)
    assert all(1 <= count <= each.pending for each, count in rows.items())
    assert sum(rows.values()) <= limits.chunk_rows
    assert not replies or of_prompts <= limits.prompt_rows
    assert not rows.keys() & set(preempted)
    freed = sum(room.pages_for(0, each.cached) for each in preempted)
    needs = [room.pages_for(each.cached, each.cached + count) for each, count in rows.items()]
    if sum(needs) > room.pages + freed:  # the oldest alone, for whom everybody else had to go
        assert list(rows) == running[:1]
        assert set(preempted) == {*running[1:], *paused}
    if sum(room.pages_for(0, len(each.ids)) for each in running) <= room.pages:
        assert set(replies) <= rows.keys()
    assert not running or running[0] in rows


@given(situations(), LIMITS)
def test_pages_are_taken_from_the_paused_and_then_from_the_youngest(
    situation: tuple[list[Sequence], list[Sequence], list[Sequence], Room], limits: Limits
) -> None:
    _, running, paused, room = situation
    _, preempted = schedule(running, paused, room, limits)
    victims = [*reversed(paused), *reversed(running)]
    assert preempted == victims[: len(preempted)]
    assert not running or running[0] not in preempted


@given(situations(), LIMITS)
def test_nobody_is_overtaken_and_all_that_is_admitted_fits(
    situation: tuple[list[Sequence], list[Sequence], list[Sequence], Room], limits: Limits
) -> None:
    waiting, running, paused, room = situation
    admitted, preempted = admit(waiting, running, paused, room, limits)
    assert preempted == paused[::-1][: len(preempted)]
    places = [waiting.index(each) for each in admitted]
    assert places == sorted(places)
    for place, each in enumerate(waiting):
        if each not in admitted and any(place < other for other in places):  # for a prompt's pages
            ahead = [*running, *(waiting[other] for other in places if other < place)]
            assert any(shared_prefix(each.ids, other.ids) >= PAGE for other in ahead)
    if waiting and not running and (room.slots or paused):
        assert admitted
    if len(admitted) + len(running) > 1:
        assert len(admitted) <= room.slots + len(preempted)
        staying = [each for each in paused if each not in preempted]
        assert len(admitted) + len(running) + len(staying) <= limits.chunk_rows
        free = room.pages + sum(room.pages_for(0, each.cached) for each in preempted)
        promised = sum(room.pages_for(each.cached, len(each.ids)) for each in running)
        if admitted:
            assert sum(room.pages_for(0, len(each.ids) + 1) for each in admitted) <= free - promised


def test_prompts_get_what_replies_leave_of_a_call() -> None:
    running = [replying(5, 2), sequence(30, cached=0), replying(3, 1), sequence(9, cached=4)]
    parts, preempted = schedule(running, [], Room(0, 99, PAGE), Limits(40, 12))
    assert [(running.index(part.sequence), part.rows) for part in parts] == [
        (0, 1),
        (1, 12),
        (2, 1),
    ]
    parts, _ = schedule(running[1::2], [], Room(0, 99, PAGE), Limits(40, 12))
    assert [part.rows for part in parts] == [30, 5]
    assert preempted == []


def test_a_prompt_waits_for_the_pages_of_one_like_it() -> None:
    first, like_it, other = sequence(20), sequence(18), sequence(20, first=7)
    room = Room(4, 99, PAGE)
    admitted, _ = admit([first, like_it, other], [], [], room, Limits(40, 40))
    assert admitted == [first, other]
    first.lease, first.cached = Lease(), 16
    assert admit([like_it], [first], [], room, Limits(40, 40))[0] == [like_it]


def test_who_is_paused_makes_place_for_who_waits() -> None:
    paused, waiting = replying(5, AHEAD), sequence(3)
    assert admit([waiting], [], [paused], Room(0, 9, PAGE), Limits(8, 8)) == ([waiting], [paused])
    assert admit([waiting], [], [paused], Room(1, 9, PAGE), Limits(8, 8)) == ([waiting], [])


@pytest.mark.parametrize("slots", [0, 1])
def test_who_does_not_fit_waits_and_so_do_those_behind(slots: int) -> None:
    running = [replying(5, 2)]
    admitted = admit([sequence(50), sequence(1)], running, [], Room(slots, 9, PAGE), Limits(8, 8))
    assert admitted == ([], [])
    too_long = sequence(50)  # for whom nobody can make place runs alone
    both = [too_long, sequence(1, first=9)]
    assert admit(both, [], [], Room(2, 9, PAGE), Limits(8, 8)) == ([too_long], [])


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_shared_prefix_is_the_longest(left: list[int], right: list[int]) -> None:
    length = shared_prefix(left, right)
    assert left[:length] == right[:length]
    assert left[length : length + 1] != right[length : length + 1] or length == len(left)
