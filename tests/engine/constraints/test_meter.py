"""A grammar that takes long for each token ends its replies, since all others wait for it."""

from __future__ import annotations

import time

import pytest

from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.constraints import matcher
from edgerun.engine.constraints.matcher import Meter
from edgerun.errors import ConstraintError
from tests.engine.constraints.vocabularies import logits_behind, spelled

AMBIGUOUS = 'start: x x x x x\nx: x x | "a" |'  # 0.2 s a token, behind a few hundred


def test_what_has_many_readings_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "SPARE_S", 0.02)
    monkeypatch.setattr(matcher, "S_PER_TOKEN", 0.0005)
    vocabulary = spelled([])
    params = SamplingParams(grammar=AMBIGUOUS, ignore_eos=True).with_vocabulary(vocabulary)
    chooser, other = (Chooser(params, [], vocabulary.vocab_size) for _ in range(2))
    logits = logits_behind([], vocabulary.vocab_size)
    with pytest.raises(ConstraintError, match=r"grammar takes over 0 ms .* a token, as those do"):
        for _ in range(1000):
            chooser.accept(chooser.draw(logits))
    with pytest.raises(ConstraintError, match="use a simpler one"):  # asked for together
        other.draw(logits)
    fresh = SamplingParams(grammar=AMBIGUOUS).with_vocabulary(vocabulary)
    assert Chooser(fresh, [], vocabulary.vocab_size).draw(logits) >= 0


def test_a_meter_allows_some_time_a_token_and_more_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "thread_time", lambda: now)
    meter = Meter()

    def take(seconds: float) -> str:
        nonlocal now
        now += seconds
        return "done"

    for _ in range(1000):
        assert meter.measure(lambda: take(0.004), tokens=1) == "done"
    assert not meter.is_over
    meter.measure(lambda: take(1.9))  # what was not taken before is not to be had now
    assert not meter.is_over
    meter.measure(lambda: take(0.2))
    assert meter.is_over
    for _ in range(30):
        meter.measure(lambda: take(0), tokens=1)
    assert not meter.is_over
