"""What is told of tokens beside their ids, against logarithms in float64."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgerun.engine import sequence as sequence_module
from edgerun.engine.call import batch_of
from edgerun.engine.chooser.logprobs import LOWEST, TokenLogprob, token_logprob
from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.sequence import AHEAD, Token
from edgerun.errors import ChooserError, SamplingError
from tests.engine.test_engine import engine, plain
from tests.support import fakes
from tests.support.plain_store import logits_of

COUNTS = st.integers(0, 20)


def by_rule(logits: np.ndarray, count: int) -> tuple[np.ndarray, list[int]]:
    """The logarithms of all probabilities, and the ids of the likeliest."""
    exact = logits.astype(np.float64)
    exact -= exact.max()
    logprobs = exact - math.log(np.exp(exact).sum())
    ids = sorted(range(len(logits)), key=lambda id_: (-logits[id_], id_))
    return logprobs, ids[:count]


def check(logits: np.ndarray, id_: int, count: int) -> None:
    before, (logprobs, ids) = logits.copy(), by_rule(logits, count)
    entry = token_logprob(logits, id_, count)
    assert np.array_equal(before, logits)
    assert entry.id == id_
    assert [each for each, _ in entry.top] == ids
    figures = [entry.logprob, *(logprob for _, logprob in entry.top)]
    assert figures == pytest.approx([logprobs[each] for each in (id_, *ids)], abs=1e-6, rel=1e-9)
    assert json.loads(json.dumps(dataclasses.asdict(entry)))["logprob"] == entry.logprob
    assert dict(entry.top).get(id_, entry.logprob) == entry.logprob


@given(
    logits=hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(-300, 300, width=32)),
    data=st.data(),
    count=COUNTS,
)
def test_few_logits(logits: np.ndarray, data: st.DataObject, count: int) -> None:
    check(logits, data.draw(st.integers(0, len(logits) - 1)), count)


@given(
    size=st.integers(1000, 9000),
    steps=st.sampled_from([1, 3, 50, 1e6]),
    seed=st.integers(0, 99),
    count=COUNTS,
    spread=st.sampled_from([0.1, 3.0, 40.0]),
)
def test_many_logits_of_which_some_are_equal(
    size: int, steps: float, seed: int, count: int, spread: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = (np.round(rng.standard_normal(size) * steps) / steps * spread).astype(np.float32)
    check(logits, int(rng.integers(size)), count)


def test_rows_of_a_call_have_the_bits_of_rows_alone() -> None:
    logits = np.random.default_rng(1).standard_normal((3, 5000)).astype(np.float32) * 4
    rows, columns = logits.copy(), np.asfortranarray(logits)
    for row in range(3):
        expected = token_logprob(logits[row].copy(), 7, 5)
        assert token_logprob(rows[row], 7, 5) == token_logprob(columns[row], 7, 5) == expected


def test_what_a_model_rules_out_has_a_number_that_json_can_write() -> None:
    logits = np.array([-np.inf, 0, -np.inf], np.float32)
    assert token_logprob(logits, 0, 3) == TokenLogprob(
        0, LOWEST, ((1, 0.0), (0, LOWEST), (2, LOWEST))
    )


@pytest.mark.parametrize("logits", [[0, np.nan], [-np.inf] * 2, [0, np.inf]])
def test_logits_that_are_none_are_refused(logits: list[float]) -> None:
    with pytest.raises(ChooserError, match="no token can be chosen from logits whose maximum"):
        token_logprob(np.array(logits, np.float32), 0, 1)


def test_an_entry_is_small_cannot_be_changed_and_goes_to_other_processes() -> None:
    entry: Any = token_logprob(np.arange(3, dtype=np.float32), 1, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        entry.logprob = 0.0
    assert not hasattr(entry, "__dict__")
    assert pickle.loads(pickle.dumps(entry)) == entry
    assert hash(entry) == hash(dataclasses.replace(entry))


@pytest.mark.parametrize("value", [-1, 21, True, "5", 2.0, [3]])
def test_other_numbers_are_refused(value: Any) -> None:
    with pytest.raises(SamplingError, match="logprobs is .*; expected a whole number from 0 to 20"):
        SamplingParams(logprobs=value)
    assert [SamplingParams(logprobs=each).logprobs for each in (None, 0, np.int64(20))] == [
        None,
        0,
        20,
    ]


def test_all_logits_are_computed_for_them() -> None:
    """Greedy choice looks at the largest alone, which some devices make use of."""
    run, _ = plain()
    batches = {}
    for logprobs in (None, 0, 3):
        params = SamplingParams(temperature=0, max_tokens=8, logprobs=logprobs)
        sequence = run.sequence([1, 2], params)
        run.add(sequence)
        run.step()
        other = run.sequence([1, 2, 3], SamplingParams(temperature=0))
        run.add(other)
        run.step()
        parts = [part for part in run._queue.parts(run.limits) if part.sequence is sequence]
        batches[logprobs] = batch_of(parts)[0]
        run.cancel(sequence)
        run.cancel(other)
    assert {key: batch.largest_only for key, batch in batches.items()} == {
        None: True,
        0: False,
        3: False,
    }


def test_tokens_that_nobody_took_have_theirs_and_others_are_not_kept() -> None:
    run, _ = plain()
    sequence = run.sequence([1, 2], SamplingParams(temperature=0, logprobs=2))
    run.add(sequence)
    ids = [1, 2]
    for _ in range(30):
        while len(sequence.ids) < len(ids) + AHEAD:
            run.step()
        assert len(sequence._untaken) == len(sequence.ids) - len(ids)
        token = sequence.take()
        assert token == Token(token.id, None, token_logprob(logits_of(ids), token.id, 2))
        ids.append(token.id)


def test_nothing_is_looked_at_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_module, "token_logprob", None)
    run = engine(fakes.saying("ab", 1))
    tokens = list(run.tokens(run.sequence([1], SamplingParams(temperature=0))))
    assert tokens == [Token(97), Token(98), Token(fakes.END, "stop")]


def test_logits_that_are_none_end_the_reply_without_a_token() -> None:
    class Broken(fakes.FakeExecutable):
        def __call__(self, *arguments: Any) -> Any:
            values = super().__call__(*arguments)
            values["logits"][:, 5] = np.nan if len(self.rows) > 3 else 0
            return values

    run, came = engine(Broken()), []
    with pytest.raises(ChooserError):
        for token in run.tokens(run.sequence([1], SamplingParams(temperature=0, logprobs=1))):
            came.append(token)
    assert len(came) == 3
    assert all(token.logprob.id == token.id for token in came)
