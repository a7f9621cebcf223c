"""Chains in compiled code: the ids of the processors, and these alone where there is no chain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from edgerun.engine.chooser import chain, compiled
from edgerun.engine.chooser.candidates import Candidates
from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.chooser.processor import Processor, StatelessProcessor
from edgerun.engine.sampling.min_p import MinP
from edgerun.engine.sampling.penalties import Penalties
from edgerun.engine.sampling.structure import Structure
from edgerun.engine.sampling.temperature import Temperature
from edgerun.engine.sampling.top_k import TopK
from edgerun.engine.sampling.top_p import TopP
from edgerun.engine.sampling.typical_p import TypicalP
from edgerun.errors import ChooserError
from tests.engine.constraints.vocabularies import Spelled

SIZES = [1, 2, 15, 17, 100, 511, 513, 1025, 6144]
VALUES: dict[str, list[float]] = {
    "temperature": [0.0, 1e-7, 0.3, 0.8, 1.3],
    "top_k": [1, 5, 40, 1000],
    "top_p": [0.01, 0.5, 0.95, 0.9999, 1 - 1e-9],
    "min_p": [0.001, 0.1, 1.0],
    "repetition_penalty": [0.5, 1.3],
    "presence_penalty": [-2.0, 0.7],
    "frequency_penalty": [-0.3, 0.2],
    "typical_p": [0.9],
    "dry_multiplier": [0.8],
}


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[compiled.Source]:
    """Kernels, compiled if need be."""
    compiled.SOURCE.wait()
    yield compiled.SOURCE


def random_logits(rng: np.random.Generator, size: int) -> np.ndarray:
    """Spread out, equal, in steps, partly impossible, or with a few that stand out."""
    logits = rng.standard_normal(size) * rng.choice([0.1, 3, 30])
    kind = rng.integers(5)
    if kind == 0:
        logits = np.zeros(size)
    elif kind == 1:
        logits = np.round(logits)
    elif kind == 2:
        logits[rng.random(size) < 0.5] = -np.inf
        logits[rng.integers(size)] = 1
    elif kind == 3:
        logits[rng.integers(0, size, 10)] += rng.uniform(0, 12)
    return logits.astype(np.float32)


def pair(params: SamplingParams, prompt: Sequence[int], size: int) -> tuple[Chooser, Chooser]:
    """A chooser, and one that has no chain."""
    chooser, plain = Chooser(params, prompt, size), Chooser(params, prompt, size)
    plain._chain = None
    return chooser, plain


@pytest.mark.parametrize("seed", range(8))
def test_a_chain_chooses_what_its_processors_would(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(60):
        size = int(rng.choice(SIZES))
        options: dict[str, Any] = {
            name: rng.choice(values).item()
            for name, values in VALUES.items()
            if rng.random() < (0.15 if name in ("typical_p", "dry_multiplier") else 0.4)
        }
        options |= {"top_k": int(options.get("top_k", 0)), "dry_sequence_breakers": []}
        if rng.random() < 0.3:
            options["logit_bias"] = {int(id_): 2.5 for id_ in rng.integers(0, size, 3)}
        params = SamplingParams(seed=int(rng.integers(1 << 40)), **options)
        chooser, plain = pair(params, rng.integers(0, size, 9).tolist(), size)
        logits = random_logits(rng, size)
        for _ in range(12):
            assert chooser.draw(logits) == (expected := plain.draw(logits)), (options, size)
            for each in (chooser, plain):
                each.accept(expected)
        for each in (chooser, plain):
            each.undo(11)
        assert chooser.draw(logits) == plain.draw(logits)


def test_a_chain_stands_behind_what_a_reply_must_look_like() -> None:
    """What is not allowed is impossible to it, and it goes on choosing with the next token."""
    rng = np.random.default_rng(1)
    vocabulary = Spelled([bytes([byte]) for byte in range(256)])
    options: dict[str, Any] = {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "min_p": 0.01}
    params = SamplingParams(regex="([a-c]{2}|[^a]){9}", seed=2, **options)
    chooser, plain = pair(params.with_vocabulary(vocabulary), [1], 256)
    for _ in range(9):
        logits = random_logits(rng, 256)
        logits[np.isinf(logits)] = 0
        assert chooser.draw(logits) == (expected := plain.draw(logits))
        for each in (chooser, plain):
            each.accept(expected)
    assert (len(chooser._before), chooser._chain is not None) == (1, True)


def chain_of(*processors: Processor) -> tuple[int, bool]:
    """How many filters are before the chain, and whether there is one."""
    chooser = Chooser(SamplingParams(processors=processors), [1, 2], 8)
    return len(chooser._before), chooser._chain is not None


@dataclass(frozen=True)
class Rounded(StatelessProcessor):
    """Changes logits, and has no part in chains."""

    def apply(self, candidates: Candidates) -> Candidates:
        np.round(candidates.logits, out=candidates.logits)
        return candidates

    @property
    def is_active(self) -> bool:
        return True


class Doubled(TopK):
    """Does something else than what it says to chains."""

    def apply(self, candidates: Candidates) -> Candidates:
        return candidates.keep_largest(2 * self.top_k)


def test_which_processors_have_a_chain() -> None:
    warm, few, nucleus = Temperature(temperature=0.5), TopK(top_k=3), TopP(top_p=0.5)
    penalties = Penalties(repetition_penalty=2.0)
    assert chain_of() == (0, True)
    assert chain_of(penalties, warm, few, nucleus, MinP(min_p=0.5)) == (0, True)
    assert chain_of(Rounded(), warm, nucleus) == (1, True)
    assert chain_of(few, warm) == (1, True)
    assert chain_of(warm, TypicalP(typical_p=0.5)) == (2, False)
    assert chain_of(warm, Doubled(top_k=3)) == (2, False)
    assert chain_of(warm, Rounded()) == (2, False)
    asked = Structure(regex="a+").with_vocabulary(Spelled([b"a"] * 8))
    assert chain_of(asked, warm, nucleus) == (1, True)
    greedy = Temperature(temperature=0)
    assert chain_of(greedy) == (0, False)
    assert chain_of(penalties, greedy) == (0, True)
    assert chain_of(few, Rounded(), greedy) == (2, False)


@pytest.mark.parametrize(
    "processors",
    [
        (TopK(top_k=3), Temperature(temperature=0.5), TopP(top_p=0.9)),
        (Rounded(), Temperature(temperature=2.0), TopK(top_k=3)),
        (Temperature(temperature=2.0), Doubled(top_k=2)),
        (MinP(min_p=0.2), TopP(top_p=0.9)),
    ],
    ids=str,
)
def test_any_order_and_any_processor_chooses_as_without_chains(
    processors: tuple[Processor, ...],
) -> None:
    rng = np.random.default_rng(3)
    chooser, plain = pair(SamplingParams(seed=4, processors=processors), [1], 60)
    for _ in range(100):
        logits = random_logits(rng, 60)
        assert chooser.draw(logits) == (expected := plain.draw(logits))
        for each in (chooser, plain):
            each.accept(expected)


@pytest.mark.parametrize("place", [3, 97])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"temperature": 0, "presence_penalty": 1.0}])
def test_wrong_logits_are_refused_in_the_same_words(
    place: int, wrong: float, options: dict[str, Any]
) -> None:
    logits = np.zeros(100, np.float32)
    logits[place] = wrong
    said = []
    for chooser in pair(SamplingParams(**options), [1], 100):
        with pytest.raises(ChooserError) as caught:
            chooser.draw(logits)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_an_id_beyond_the_logits_writes_nowhere() -> None:
    chooser = Chooser(SamplingParams(repetition_penalty=1.5), [1 << 40], 100)
    with pytest.raises(ChooserError, match="PenaltyFilter failed: IndexError"):
        chooser.draw(np.zeros(100, np.float32))


def test_logits_of_another_kind_or_in_strides_are_chosen_from_as_well() -> None:
    logits = np.random.default_rng(0).standard_normal((40, 2)).astype(np.float32)
    chooser, plain = pair(SamplingParams(seed=1, top_k=5), [1], 40)
    expected = plain.draw(logits[:, 0].copy())
    assert chooser.draw(logits[:, 0]) == expected
    assert chooser.draw(logits[:, 0].astype(np.float64)) == expected  # type: ignore[arg-type]


class Patient(compiled.Source):
    """A source whose compiler is a list."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.compiled: list[int] = []
        self.fails = fails

    def wait(self) -> compiled.Kernels:
        self.compiled.append(self._asked)
        if self.fails:
            raise RuntimeError("no compiler")
        return super().wait()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("is_kept", [False, True])
def test_nothing_is_compiled_for_a_few_tokens(
    monkeypatch: pytest.MonkeyPatch, is_kept: bool, fails: bool
) -> None:
    """What is on disk is taken at once; and who fails is asked no more than twice."""
    source = Patient(fails=fails)
    monkeypatch.setattr(chain, "SOURCE", source)
    monkeypatch.setattr(compiled, "is_kept", lambda name: is_kept)
    monkeypatch.setattr(
        compiled.threading, "Thread", lambda target, daemon: type("", (), {"start": target})
    )
    chooser, logits = Chooser(SamplingParams(seed=3), [1], 30), np.zeros(30, np.float32)
    plain = pair(SamplingParams(seed=3), [1], 30)[1]
    for count in range(compiled.PATIENCE + 10):
        assert chooser.draw(logits) == plain.draw(logits)
        early = [1] if is_kept else []
        late = [compiled.PATIENCE] if fails or not is_kept else []
        assert source.compiled == (early if count + 1 < compiled.PATIENCE else early + late)
    assert (source.kernels is None) == fails
