"""Samplers against definitions written again here, one token at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgerun.engine.chooser.candidates import Candidates
from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.chooser.selection import last_of_fewest, place
from edgerun.engine.sampling.logit_bias import LogitBias
from edgerun.engine.sampling.penalties import Penalties
from edgerun.engine.sampling.top_k import TopK
from edgerun.errors import ChooserError, SamplingError

LOGITS = hnp.arrays(
    np.float32,
    st.integers(1, 60),
    elements=st.floats(-12, 12, width=32),
)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def remaining_ids(logits: np.ndarray, **params: Any) -> set[int]:
    """Ids that the filters leave."""
    candidates = filtered(logits, [], [], **params)
    return set(range(len(logits))) if candidates.ids is None else set(map(int, candidates.ids))


def filtered(logits: np.ndarray, prompt: list[int], reply: list[int], **params: Any) -> Candidates:
    """What processors leave behind a prompt and the beginning of a reply."""
    candidates = Candidates(logits.copy())
    for processor in SamplingParams(**params).processors:
        if processor.is_active:
            each = processor.begin(prompt, len(logits))
            for id_ in reply:
                each.accept(id_)
            candidates = each.apply(candidates)
    return candidates


def choose(logits: np.ndarray, prompt: Sequence[int] = (), **params: Any) -> int:
    return Chooser(SamplingParams(**params), prompt, len(logits)).draw(logits)


def draws(logits: np.ndarray, count: int = 300, **params: Any) -> list[int]:
    """Tokens drawn one after the other."""
    chooser = Chooser(SamplingParams(**{"seed": 0, **params}), (), len(logits))
    tokens = []
    for _ in range(count):
        tokens.append(chooser.draw(logits))
        chooser.accept(tokens[-1])
    return tokens


@given(LOGITS)
def test_greedy_takes_the_first_of_the_highest(logits: np.ndarray) -> None:
    assert choose(logits, temperature=0) == int(np.argmax(logits))


@given(LOGITS, st.integers(1, 70))
def test_top_k_keeps_what_is_at_least_as_likely_as_the_kth(logits: np.ndarray, k: int) -> None:
    threshold = sorted(logits, reverse=True)[min(k, len(logits)) - 1]
    assert remaining_ids(logits, top_k=k) == {
        i for i, value in enumerate(logits) if value >= threshold
    }


@given(LOGITS, st.floats(0.01, 0.99))
def test_top_p_keeps_a_nucleus_that_cannot_be_smaller(logits: np.ndarray, p: float) -> None:
    chosen = remaining_ids(logits, top_p=p)
    weights = softmax(logits)
    mass = sum(weights[i] for i in chosen)
    least = min(weights[i] for i in chosen)
    above = sum(weights[i] for i in chosen if weights[i] > least * (1 + 1e-5))
    assert mass >= p - 1e-5
    assert above < p + 1e-5
    assert all(weights[i] <= least * (1 + 1e-5) for i in set(range(len(logits))) - chosen)


@given(LOGITS, st.floats(0.001, 1))
def test_min_p_keeps_what_is_likely_compared_with_the_likeliest(
    logits: np.ndarray, p: float
) -> None:
    weights = softmax(logits)
    chosen = remaining_ids(logits, min_p=p)
    for index, weight in enumerate(weights):
        ratio = weight / weights.max()
        if not math.isclose(ratio, p, rel_tol=1e-4):
            assert (index in chosen) == (ratio > p)


@pytest.mark.parametrize("distance", [0.0, 1.0, 2.0, 5.0])
def test_min_p_keeps_a_token_that_is_exactly_as_likely_as_the_least(distance: float) -> None:
    """A probability of min_p times the largest; in logits the boundary can be met exactly."""
    p = math.exp(-distance)
    assert math.log(p) == -distance
    boundary = np.float32(3 - distance)
    below = np.nextafter(boundary, np.float32(-9))
    logits = np.array([below, 3, boundary, boundary, below], np.float32)
    assert remaining_ids(logits, min_p=p) == {1, 2, 3}


@given(LOGITS, st.floats(0.05, 0.95))
def test_typical_p_keeps_the_tokens_nearest_to_the_entropy(logits: np.ndarray, p: float) -> None:
    weights = softmax(logits)
    surprise = -np.log(weights)
    entropy = float((weights * surprise).sum())
    distance = np.abs(surprise - entropy)
    chosen = remaining_ids(logits, typical_p=p)
    farthest = max(distance[i] for i in chosen)
    assert sum(weights[i] for i in chosen) >= p - 1e-4
    assert all(distance[i] >= farthest - 1e-3 for i in set(range(len(logits))) - chosen)
    assert sum(weights[i] for i in chosen if distance[i] < farthest - 1e-3) < p + 1e-4


@given(LOGITS, st.floats(0.1, 5))
def test_draws_follow_the_tempered_distribution(logits: np.ndarray, temperature: float) -> None:
    counts = Counter(draws(logits, 400, temperature=temperature))
    expected = softmax(logits / np.float32(temperature))
    for index, weight in enumerate(expected):
        # Five standard deviations of a binomial distribution, whose tail is longer for rare events:
        # hypothesis found a token of one draw in 15,000 that is drawn twice.
        assert abs(counts[index] - 400 * weight) <= 5 * math.sqrt(400 * weight) + 3


def test_penalties_follow_their_formulas() -> None:
    logits = np.array([2.0, -2.0, 1.0, 0.5, 0.0], np.float32)
    candidates = filtered(
        logits,
        [0, 1, 2],
        [2, 3, 2],
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        logit_bias={4: 1.5},
    )
    expected = [2.0 / 2, -2.0 * 2, 1.0 / 2 - 2 * 0.25 - 0.5, 0.5 / 2 - 0.25 - 0.5, 1.5]
    np.testing.assert_allclose(candidates.logits, expected, atol=1e-6)


@given(LOGITS, st.integers(1, 20), st.floats(0.05, 0.95))
def test_greedy_choice_is_the_likeliest_of_what_the_filters_leave(
    logits: np.ndarray, k: int, p: float
) -> None:
    """Typical-p chooses among what top-k left, so greedy choice must not leave top-k out."""
    for params in ({"top_k": k}, {"top_k": k, "typical_p": p}, {"top_p": p, "typical_p": p}):
        remaining = sorted(remaining_ids(logits, **params))
        likeliest = remaining[int(np.argmax(logits[remaining]))]
        assert choose(logits, temperature=0, **params) == likeliest


def test_tiny_repetition_penalties_repeat_without_overflow() -> None:
    logits = np.array([1.0, 300.0, -2.0], np.float32)
    for temperature in (0, 1e-9, 1):
        assert choose(logits, [0, 2], repetition_penalty=1e-300, temperature=temperature) == 0


def test_filters_apply_one_after_the_other() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    # Of the two that top-k leaves, renormalised to 4/7 and 3/7, half the mass needs only one.
    assert remaining_ids(logits, top_k=2, top_p=0.5) == {0}
    assert remaining_ids(logits, top_p=0.5) == {0, 1}


def test_a_seed_repeats_the_choice_and_none_varies_it() -> None:
    logits = np.zeros(1000, np.float32)

    assert draws(logits, 8, seed=7) == draws(logits, 8, seed=7)
    assert draws(logits, 8, seed=7) != draws(logits, 8, seed=8)
    assert draws(logits, 8, seed=None) != draws(logits, 8, seed=None)


def test_logits_are_left_as_they_are() -> None:
    logits = np.array([1.0, 2.0], np.float32)
    choose(logits, [0], temperature=0.5, logit_bias={0: 3}, repetition_penalty=1.5)
    assert logits.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("temperature", [1e-300, 1e-9, 1e-3])
def test_tiny_temperatures_are_greedy_without_overflow(temperature: float) -> None:
    logits = np.array([1.0, 300.0, -3e38, 2.0], np.float32)
    assert set(draws(logits, 20, temperature=temperature)) == {1}


def test_impossible_tokens_are_never_drawn() -> None:
    logits = np.array([-np.inf, 0.0, -np.inf, 0.0, -np.inf], np.float32)
    assert set(draws(logits)) == {1, 3}
    assert set(draws(logits, top_p=0.9)) == {1, 3}
    assert set(draws(logits, typical_p=0.9)) == {1, 3}


@pytest.mark.parametrize("values", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("options", [{}, {"logit_bias": {0: 1}}, {"min_p": 0.1}, {"top_k": 1}])
def test_no_token_is_chosen_from_broken_logits(
    values: list[float], temperature: float, options: dict[str, Any]
) -> None:
    with pytest.raises(ChooserError, match="maximum"):
        choose(np.array(values, np.float32), temperature=temperature, **options)


def test_penalties_and_biases_may_stand_behind_a_filter() -> None:
    """Which leaves 1, 3 and 4 of what they name, in a caller's own order."""
    logits = np.array([0, 5, 1, 4, 6], np.float32)
    processors = [
        TopK(top_k=3),
        LogitBias(logit_bias={0: 9.0, 4: 2.0}),
        Penalties(repetition_penalty=2.0, presence_penalty=0.5),
    ]
    chooser = Chooser(SamplingParams(processors=processors), [0, 1, 2], 5)
    chooser.accept(2)
    chooser.accept(3)
    left = chooser._filtered(logits)
    assert left.ids is not None
    assert (left.ids.tolist(), left.logits.tolist()) == ([1, 3, 4], [2.5, 1.5, 8.0])


def test_a_bias_outside_the_vocabulary_is_an_error() -> None:
    with pytest.raises(SamplingError, match="id 9; the vocabulary ends at 1"):
        Chooser(SamplingParams(logit_bias={9: 1}), (), vocab_size=2)


@given(
    hnp.arrays(np.float32, st.integers(1, 3000), elements=st.floats(0, 1, width=32)),
    st.floats(0, 1),
)
def test_place_agrees_with_a_plain_running_sum(weights: np.ndarray, share: float) -> None:
    mass = share * float(weights.sum(dtype=np.float64))
    index = place(weights, mass)
    sums = np.cumsum(weights, dtype=np.float64)
    assert sums[index] >= mass - 1e-9
    assert index == 0 or sums[index - 1] <= mass + 1e-9


SPREADS = [0.01, 0.3, 3.0, 12.0]


@pytest.mark.parametrize("mass", [0.001, 0.5, 0.95, 0.9999])
@pytest.mark.parametrize("spread", SPREADS)
def test_large_vocabularies_give_the_nucleus_of_a_full_sort(spread: float, mass: float) -> None:
    logits = np.random.default_rng(0).standard_normal(50_000).astype(np.float32) * spread
    weights = Candidates(logits).weights()
    ordered = np.sort(logits)[::-1]
    sums = np.cumsum(np.sort(weights)[::-1], dtype=np.float64)
    expected = ordered[np.searchsorted(sums, mass * sums[-1])]
    assert last_of_fewest(logits, weights, mass * sums[-1]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("spread", SPREADS)
def test_large_vocabularies_give_the_typical_set_of_a_full_sort(spread: float) -> None:
    logits = np.random.default_rng(1).standard_normal(50_000).astype(np.float32) * spread
    weights = softmax(logits)
    surprise = -np.log(weights)
    distance = np.abs(surprise - (weights * surprise).sum())
    order = np.argsort(distance)
    chosen = order[: np.searchsorted(np.cumsum(weights[order]), 0.6) + 1]
    remaining = remaining_ids(logits, typical_p=0.6)
    # Single tokens may differ by rounding where distances are nearly equal.
    assert len(remaining.symmetric_difference(map(int, chosen))) <= 1e-3 * len(remaining) + 1


def test_equal_and_impossible_keys_are_counted_in_full() -> None:
    keys = np.full(20_000, -3.0, np.float32)
    keys[::3] = -np.inf
    weights = np.exp(keys)
    assert last_of_fewest(keys, weights, 0.5 * weights.sum()) == -3.0
    assert last_of_fewest(keys, weights, 2.0 * weights.sum()) == -np.inf


BAD = [
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", 1e9),
    ("temperature", "hot"),
    ("temperature", True),
    ("top_k", -1),
    ("top_k", 1.5),
    ("top_k", 2**40),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("top_p", math.nan),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("typical_p", 0),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1.0),
    ("presence_penalty", 3),
    ("frequency_penalty", -math.inf),
    ("seed", -1),
    ("seed", 2**64),
    ("max_tokens", 0),
    ("max_tokens", -5),
    ("max_tokens", 2**31),
    ("stop", ("",)),
    ("stop", 5),
    ("stop", ["x"] * 65),
    ("stop_ids", (-1,)),
    ("stop_ids", None),
    ("stop_ids", 5),
    ("stop_ids", "5"),
    ("logit_bias", {-1: 0.0}),
    ("logit_bias", {1: 101}),
    ("logit_bias", [1]),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_values_outside_their_range_are_one_clear_sentence(name: str, value: Any) -> None:
    with pytest.raises(SamplingError) as caught:
        SamplingParams(**{name: value})
    message = str(caught.value)
    assert name in message
    assert "\n" not in message


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "theirs", "argument"),
    [
        ({"top_k": 20}, "TopKLogitsWarper", 20),
        ({"top_p": 0.8}, "TopPLogitsWarper", 0.8),
        ({"min_p": 0.1}, "MinPLogitsWarper", 0.1),
        ({"typical_p": 0.7}, "TypicalLogitsWarper", 0.7),
    ],
)
def test_filters_keep_what_transformers_keeps(
    ours: dict[str, Any], theirs: str, argument: float
) -> None:
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers.generation.logits_process")
    warper = getattr(process, theirs)(argument)
    for seed in range(20):
        logits = np.random.default_rng(seed).standard_normal(500).astype(np.float32) * 2
        scores = warper(torch.zeros((1, 1), dtype=torch.long), torch.tensor(logits)[None])[0]
        assert remaining_ids(logits, **ours) == set(
            np.flatnonzero(np.isfinite(scores.numpy())).tolist()
        )
