"""Drafters that fail, and replies that fail behind drafts: nothing of it comes to others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.drafting.base import Draft, Drafter
from edgerun.errors import BackendError
from edgerun.state import Batch
from tests.engine.drafting.drafted import PROMPT, Run, said
from tests.support.plain_store import PAGE_TOKENS


class Broken(Drafter):
    """Does something that no drafter should do, once the reply has some ids."""

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self.answer = answer

    def draft(self, ids: list[int], most: int) -> Any:
        return self.answer(most) if len(ids) > 7 else None


def failing(most: int) -> None:
    raise ValueError("out of order")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (failing, "ValueError: out of order"),
        (lambda most: 7, "AttributeError: "),
        (lambda most: Draft(None, 0, 0.9), "TypeError: "),  # type: ignore[arg-type]
        (lambda most: Draft([2] * most, 0, -1.0), "ZeroDivisionError: "),
        (lambda most: Draft([2] * most, [], 0.9), "TypeError: "),  # type: ignore[arg-type]
        (lambda most: Draft([-1], 0, 2.0), "InputError: -1 is no id"),
        (lambda most: Draft([1 << 31], 0, 2.0), "InputError: 2147483648 is no id"),
        (lambda most: Draft(["a"], 0, 2.0), "InputError: 'a' is no id"),  # type: ignore[list-item]
    ],
)
def test_a_drafter_that_fails_is_left_and_no_reply_with_it(
    caplog: pytest.LogCaptureFixture, answer: Callable[[int], Any], error: str
) -> None:
    run = Run(lambda ids: [])
    run.drafting._make = lambda: Broken(answer)
    for _ in range(2):
        reply = run.reply(PROMPT)
        assert reply.ids == [*PROMPT, *said(PROMPT, 24)]
        assert reply.stats.drafted_tokens == 0
    (record,) = caplog.records
    assert record.message.startswith(
        f"replies are not drafted any more, for the drafter failed: {error}"
    )


def test_no_more_is_computed_of_a_draft_than_there_are_pages_for() -> None:
    """The next page may be another reply's."""
    run = Run(lambda ids: [])
    run.drafting._make = lambda: Broken(lambda most: Draft([2] * 40, 0, 2.0))
    spare: list[int] = []

    def check(batch: Batch) -> None:
        first, last = int(batch.positions[0]), int(batch.positions[-1])
        assert first // PAGE_TOKENS == last // PAGE_TOKENS
        spare.append(batch.rows)

    run.programs.trip = check
    assert run.reply(PROMPT).ids == [*PROMPT, *said(PROMPT, 24)]
    assert max(spare) > len(PROMPT)


def test_likelihoods_that_are_none_promise_nothing(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(lambda ids: [])
    run.drafting._make = lambda: Broken(lambda most: Draft([2], 0, float("nan")))
    reply = run.reply(PROMPT)
    assert (reply.ids, reply.stats.drafted_tokens) == ([*PROMPT, *said(PROMPT, 24)], 0)
    assert not caplog.records


def test_a_drafter_that_uses_the_model_itself_is_left(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(lambda ids: [])
    run.drafting._make = lambda: Broken(lambda most: run.engine.step())
    assert run.reply(PROMPT).ids == [*PROMPT, *said(PROMPT, 24)]
    assert "InputError: a function that the model calls" in caplog.text


def test_what_was_right_before_an_error_is_counted() -> None:
    run = Run(lambda ids: said(ids, 3))
    params = SamplingParams(temperature=0, max_tokens=24)
    sequence = run.engine.sequence(PROMPT, params)
    chooser: Any = sequence._chooser
    draw = chooser.draw

    def draws(logits: Any) -> int:
        if len(sequence.ids) == len(PROMPT) + 7:
            raise BackendError("lost")
        return int(draw(logits))

    chooser.draw = draws
    with pytest.raises(BackendError, match="^lost$"):
        list(run.engine.tokens(sequence))
    assert sequence.ids == [*PROMPT, *said(PROMPT, 7)]
    stats = sequence.stats
    assert stats.accepted_tokens > 0
    # The call that ended in the error made its right tokens, and none of its own.
    assert stats.decode_tokens == stats.completion_tokens


def test_calls_that_make_no_token_are_no_steps() -> None:
    """Such as compute again a part of what was right, beside others."""
    run = Run(lambda ids: [*said(ids, 2), 0], takes_back=False, prompt_rows=2)
    params = SamplingParams(temperature=0, max_tokens=24)
    first, second = (run.engine.sequence([number, 1, 3], params) for number in range(2))
    for sequence in (first, second):
        run.engine.add(sequence)
    while not second.is_reply or second.pending < 3:  # the first waits for its reader
        run.engine.step()
        while second.take():
            pass
    before = len(run.programs.calls)
    while not (first.is_ended and second.is_ended):
        for sequence in (first, second):
            while sequence.take():
                pass
        run.engine.step()
    assert run.programs.calls[before] == {0: 1, 1: 2}
    for number, sequence in enumerate((first, second)):
        assert sequence.ids[3:] == said([number, 1, 3], 24)
        assert sequence.stats.decode_tokens == 23
