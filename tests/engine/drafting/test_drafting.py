"""How far a reply is drafted: by what calls take, and by what became of drafts."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.drafting.drafting import Drafting, Guesses
from edgerun.engine.drafting.pace import GAIN, MOST_ROWS, Pace
from edgerun.engine.sequence import Ending, shared_prefix
from edgerun.engine.sequence import Sequence as Reply
from edgerun.errors import BackendError
from edgerun.state import Batch
from tests.engine.drafting.drafted import LINEAR, PROMPT, Run, Scripted, pace_of, said
from tests.support.plain_store import PAGE_TOKENS, VOCAB


def fastest(drafted: int, likelihood: float, rows: int, takes_back: bool) -> int:
    """Tries all lengths of a draft."""

    def seconds(count: int) -> float:
        tokens = sum(likelihood**number for number in range(count + 1))
        took = LINEAR[rows + count]
        if not takes_back:
            took += (1 - likelihood**count) * (LINEAR[rows + count] - LINEAR[1])
        return took / tokens if count else took / GAIN

    return min(range(drafted + 1), key=seconds)


@given(st.integers(0, 11), st.floats(0, 1), st.integers(1, 5), st.booleans())
def test_a_draft_has_the_length_that_promises_most(
    drafted: int, likelihood: float, rows: int, takes_back: bool
) -> None:
    pace = pace_of(dict(enumerate(LINEAR[1:], 1)))
    best = pace.best(drafted, likelihood, rows, takes_back=takes_back)
    assert best == fastest(drafted, likelihood, rows, takes_back)


def test_calls_of_many_rows_are_not_counted() -> None:
    pace = pace_of({1: 1.0, MOST_ROWS + 1: 9.0, 500: 9.0})
    assert pace.best(15, 1.0) == 15


def test_rows_that_were_never_measured_lie_between_those_that_were() -> None:
    pace = pace_of({1: 1.0, 4: 4.0, 8: 4.4})  # two to four rows take as long as they are
    assert pace.best(3, 0.99) == 0
    assert pace.best(7, 0.99) == 7
    assert pace_of({1: 1.0}).best(15, 1.0) == 15  # a tenth for each row more
    assert pace_of({1: 1.0}).best(15, 0.1) == 0


def test_nothing_is_drafted_before_single_rows_were_measured_twice() -> None:
    pace = Pace()
    assert pace.best(4, 1.0) == 0
    pace.add(1, 1.0)
    assert pace.best(4, 1.0) == 0
    pace.add(1, 1.0)
    assert pace.best(4, 1.0) == 4


def test_the_first_call_of_a_kind_counts_for_nothing_and_slow_calls_for_little() -> None:
    pace = pace_of({1: 1.0})
    pace.add(5, 50.0)  # compiles something
    assert pace.best(4, 0.9) == 4
    pace.add(5, 1.5)
    assert pace.best(4, 0.9) == 4
    for _ in range(4):
        pace.add(5, 9.0)  # so it has become
    assert pace.best(4, 0.9) < 4


class Counting:
    """Pays for nothing, and notes how likely it is told that ids are right."""

    def __init__(self, pays: int) -> None:
        self.pays = pays
        self.told: list[float] = []

    def best(self, drafted: int, likelihood: float) -> int:
        self.told.append(likelihood)
        return min(drafted, self.pays)


@pytest.mark.parametrize(
    ("pays", "says", "right", "looked_at"),
    [
        (4, [1, 2, 3, 4, 9], 4, 4),
        (4, [1, 2, 8], 2, 3),  # what follows the first wrong one says nothing
        (4, [7], 0, 1),
        (2, [1, 2, 8], 2, 2),  # as much as was computed
        (0, [1], 0, 0),
    ],
)
def test_drafts_count_up_to_the_first_wrong_id(
    pays: int, says: list[int], right: int, looked_at: int
) -> None:
    pace = Counting(pays)
    guesses = Guesses(Scripted(lambda ids: [1, 2, 3, 4]))
    assert guesses.next([5], 9, pace.best) == (1, 2, 3, 4)[:pays]
    guesses.next([5, *says], 9, pace.best)
    guesses.next([5, *says, *says], 9, pace.best)
    first = 2 * 0.9
    assert pace.told[0] == pytest.approx(0.9)
    assert pace.told[1] == pytest.approx((first + right) / (2 + looked_at))
    # The past counts for nine tenths with each draft, also where none paid.
    again = shared_prefix([1, 2, 3, 4][:pays], says)
    seen = min(again + 1, pays)
    assert pace.told[2] == pytest.approx(
        (first + 0.9 * right + again) / (2 + 0.9 * looked_at + seen)
    )


def test_drafts_of_other_evidence_count_apart() -> None:
    pace = Counting(4)
    guesses = Guesses(Scripted(lambda ids: [1, 2, 3, 4], lambda ids: len(ids) % 2))
    guesses.next([5], 9, pace.best)
    guesses.next([5, 6], 9, pace.best)
    assert pace.told == pytest.approx([0.9, 0.9])


def test_a_draft_is_weighed_beside_the_rows_that_there_are() -> None:
    told: list[Any] = []

    def best(drafted: int, likelihood: float, **beside: Any) -> int:
        told.append((drafted, beside))
        return 2

    drafting: Any = Drafting(lambda: Scripted(lambda ids: [1] * 20), takes_back=False)
    drafting.pace = SimpleNamespace(best=best)
    reply = Reply([4, 9, 2], Ending(99), None)
    reply.ids, reply.cached = [4, 9, 2, 8, 8, 8], 3
    drafting.draft(reply, 3, 40)
    assert told == [(MOST_ROWS - 3, {"rows": 3, "takes_back": False})]
    assert reply.drafted == (1, 1)
    reply.drafted = ()
    drafting.draft(reply, 2, 40)  # of the three that come before a draft
    assert reply.drafted == ()


def test_what_is_right_takes_fewer_calls_and_says_the_same() -> None:
    run = Run(lambda ids: said(ids, 6))
    reply = run.reply(PROMPT)
    assert reply.ids == [*PROMPT, *said(PROMPT, 24)]
    stats = reply.stats
    assert (stats.completion_tokens, stats.decode_tokens) == (24, 23)
    assert stats.decode_steps + stats.accepted_tokens == 23
    assert stats.accepted_tokens == stats.drafted_tokens > 15
    assert len(run.programs.calls) == 1 + stats.decode_steps
    assert [*run.programs.calls[0].values()] == [len(PROMPT)]  # nothing is drafted behind a prompt


def test_times_are_those_of_replies_alone() -> None:
    """Of prompts, and of calls with others, they would say something else."""
    run, noted = Run(lambda ids: said(ids, 2)), []
    run.drafting.pace.add = lambda rows, seconds: noted.append(rows)
    run.reply(PROMPT)
    assert noted == [sum(call.values()) for call in run.programs.calls[1:]]
    assert {*noted} > {1}
    before = len(noted)
    for sequence in run.together(12):
        assert len(sequence.ids) == 2 + 12
    assert len(noted) == before


def test_an_interrupted_draft_is_not_in_the_calls_of_others() -> None:
    run = Run(lambda ids: said(ids, 3))
    params = SamplingParams(temperature=0, max_tokens=12)
    first, second = (run.engine.sequence([number, 1, 3], params) for number in range(2))

    def interrupt(batch: Batch) -> None:
        if batch.rows > 1 and len(first.ids) > 5:
            run.programs.trip = lambda batch: None
            raise KeyboardInterrupt

    run.programs.trip = interrupt
    run.engine.add(first)
    with pytest.raises(KeyboardInterrupt):
        while True:
            run.engine.step()
            first.take()
    run.engine.add(second)
    calls = len(run.programs.calls)
    while not (first.is_ended and second.is_ended):
        run.engine.step()
        for sequence in (first, second):
            while sequence.take():
                pass
    assert run.programs.calls[calls] == {0: 1, 1: 3}
    assert [each.ids[3:] for each in (first, second)] == [
        said([number, 1, 3], 12) for number in range(2)
    ]


def test_what_is_wrong_says_the_same_and_is_soon_left() -> None:
    run = Run(lambda ids: [(said(ids, 1)[0] + 1) % VOCAB] * 6)
    reply = run.reply(PROMPT)
    assert reply.ids == [*PROMPT, *said(PROMPT, 24)]
    assert reply.stats.accepted_tokens == 0
    assert 0 < reply.stats.drafted_tokens < 25  # as far as pages go with every token, 31


def test_what_was_right_is_computed_again_where_nothing_can_be_taken_back() -> None:
    """With what follows; a call that was right to its end counts as it is."""
    starts: list[tuple[int, int]] = []
    run = Run(
        lambda ids: [*said(ids, 2), 0] if len(ids) % 2 else said(ids, 3),
        takes_back=False,
    )
    run.programs.trip = lambda batch: starts.append((int(batch.positions[0]), batch.rows))
    reply = run.reply(PROMPT)
    assert reply.ids == [*PROMPT, *said(PROMPT, 24)]
    repeated = 0
    for (start, rows), (following, _) in itertools.pairwise(starts):
        assert following in (start, start + rows)
        repeated += following == start
    assert 2 < repeated < len(starts) - 2
    assert reply.stats.decode_tokens == 23


def test_drafts_come_back_where_they_did_not_pay_for_a_while() -> None:
    """The text may have changed, and what is not tried is not known."""
    wrong_until = len(PROMPT) + 12

    def guess(ids: list[int]) -> list[int]:
        right = said(ids, 6)
        return right if len(ids) > wrong_until else [(right[0] + 1) % VOCAB]

    stats = Run(guess, context=200).reply(PROMPT, max_tokens=60).stats
    assert stats.accepted_tokens > 20


@pytest.mark.parametrize("most", [1, 2, 5, 9])
def test_a_reply_is_not_drafted_beyond_its_end(most: int) -> None:
    run = Run(lambda ids: said(ids, 15))
    assert run.reply(PROMPT, max_tokens=most).ids == [*PROMPT, *said(PROMPT, most)]
    ends = [said(PROMPT, 7)[-1]]
    stopped = run.reply(PROMPT, stop_ids=ends)
    assert stopped.ids == [*PROMPT, *said(PROMPT, said(PROMPT, 24).index(ends[0]) + 1)]
    assert stopped.finish_reason == "stop"


def test_calls_stay_within_pages_limits_and_context() -> None:
    rows: list[int] = []
    run = Run(lambda ids: said(ids, MOST_ROWS), context=30, chunk_rows=5)

    def check(batch: Batch) -> None:
        rows.append(batch.rows)
        first, last = int(batch.positions[0]), int(batch.positions[-1])
        if batch.rows > len(PROMPT):
            assert first // PAGE_TOKENS == last // PAGE_TOKENS
        assert last < 30

    run.programs.trip = check
    reply = run.reply(PROMPT, max_tokens=99)
    assert reply.ids == [*PROMPT, *said(PROMPT, 27)]
    assert reply.finish_reason == "context"
    assert max(rows) > 1
    assert max(rows) <= 5


def test_replies_beside_others_are_not_drafted() -> None:
    run = Run(lambda ids: said(ids, 6))
    sequences = run.together(12)
    assert [sequence.ids for sequence in sequences] == [
        [number, 1, *said([number, 1], 12)] for number in range(2)
    ]
    assert not any(sequence.stats.drafted_tokens for sequence in sequences)


def test_a_call_that_fails_is_made_again_without_its_draft() -> None:
    run = Run(lambda ids: [*said(ids, 1), 31])

    def fail(batch: Batch) -> None:
        if 31 in batch.ids:
            raise BackendError("lost")

    run.programs.trip = fail
    assert run.reply(PROMPT, max_tokens=5).ids == [*PROMPT, *said(PROMPT, 5)]


def test_nothing_is_drafted_where_rows_have_other_bits_together() -> None:
    run = Run(lambda ids: said(ids, 6))
    run.programs.has_rows_alike = False
    reply = run.reply(PROMPT)
    assert reply.ids == [*PROMPT, *said(PROMPT, 24)]
    assert reply.stats.drafted_tokens == 0
