"""Processors that fail, that leave nothing, and that no compiled code joins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from edgerun.engine.chooser.candidates import Candidates
from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.option import Number, option
from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.chooser.processor import StatelessProcessor
from edgerun.engine.sampling.temperature import Temperature
from edgerun.engine.sampling.top_p import TopP
from edgerun.errors import ChooserError
from tests.engine.test_chooser import VOCAB, logits_behind


@dataclass(frozen=True)
class Faulty(StatelessProcessor):
    """Does what the test wants."""

    order: ClassVar[int] = 99
    faulty: float = option(0.0, Number(0, 1), "What to do.")

    def apply(self, candidates: Candidates) -> Candidates:
        return FAULTS[self.faulty](candidates)


def gives_up(candidates: Candidates) -> Candidates:
    raise RuntimeError("no idea")


def forbids_all(candidates: Candidates) -> Candidates:
    candidates.logits[:] = -np.inf
    return candidates


FAULTS: dict[float, Callable[[Candidates], Candidates]] = {
    0.1: gives_up,
    0.2: lambda candidates: candidates.keep(candidates.logits > 1e9),
    0.3: forbids_all,
    0.4: lambda candidates: candidates,
}
SAID = {0.1: "Faulty failed: RuntimeError: no idea", 0.2: "Faulty left no token", 0.3: "maximum"}


@pytest.mark.parametrize("fault", SAID)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_whatever_fails_in_a_processor_is_one_typed_error(fault: float, temperature: float) -> None:
    """And leaves the chooser as it was."""
    processors = (Temperature(temperature=temperature), Faulty(faulty=fault))
    chooser = Chooser(SamplingParams(processors=processors), [1], VOCAB)
    for use in (chooser.draw, chooser.distribution):
        with pytest.raises(ChooserError, match=SAID[fault]):
            use(logits_behind([1]))
    assert chooser.position == 1


@pytest.mark.parametrize(
    "raised", [RuntimeError("no idea"), ChooserError("Faulty failed: RuntimeError: no idea")]
)
def test_what_fails_as_it_learns_of_a_token_is_one_typed_error(
    raised: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gives_up_later(self: Faulty, id_: int) -> None:
        raise raised

    monkeypatch.setattr(Faulty, "accept", gives_up_later)
    chooser = Chooser(SamplingParams(processors=[Faulty(faulty=0.1)]), [1], VOCAB)
    with pytest.raises(ChooserError, match=SAID[0.1]):
        chooser.accept(2)


@pytest.mark.parametrize("vocab", [100, 5000])
def test_no_rounding_of_sums_draws_what_is_impossible(vocab: int) -> None:
    """Of small weights behind a large one, a sum of blocks is more than one after the other."""
    logits = np.full(vocab, -37, np.float32)
    logits[0], logits[-7:] = 0, -np.inf
    params = SamplingParams(processors=[Faulty(faulty=0.4)])  # which no compiled code joins
    chooser = Chooser(params, [1], vocab, uniform_at=lambda _: float(np.nextafter(1, 0)))
    assert chooser.draw(logits) == vocab - 8


def test_a_processor_that_finds_no_token_possible_is_not_said_to_have_failed() -> None:
    params = SamplingParams(processors=(Faulty(faulty=0.3), TopP(top_p=0.5)))
    with pytest.raises(ChooserError, match="^no token can be chosen from logits whose maximum"):
        Chooser(params, [1], VOCAB).draw(logits_behind([1]))
