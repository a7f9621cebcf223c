"""The chooser: exact draws, exact verification, and nothing left of what was taken back."""

from __future__ import annotations

import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.chooser.processor import Processor
from edgerun.engine.chooser.randomness import uniform
from edgerun.engine.sampling.temperature import Temperature
from edgerun.engine.sampling.top_p import TopP
from edgerun.engine.sequence import Ending
from edgerun.engine.sequence import Sequence as Reply
from edgerun.errors import ChooserError

VOCAB = 12
EVERYTHING: dict[str, Any] = {
    "temperature": 0.8,
    "top_k": 9,
    "top_p": 0.95,
    "min_p": 0.01,
    "typical_p": 0.97,
    "repetition_penalty": 1.3,
    "presence_penalty": 0.2,
    "frequency_penalty": -0.1,
    "logit_bias": {3: 1.5, 7: -2.0},
    "dry_multiplier": 0.7,
    "dry_allowed_length": 1,
    "dry_sequence_breakers": (),
}
IDS = st.integers(0, VOCAB - 1)
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.5, "frequency_penalty": 0.5},
    {"temperature": 0, "top_k": 3, "typical_p": 0.5},
    {"temperature": 0, "dry_multiplier": 2, "dry_allowed_length": 1, "dry_sequence_breakers": ()},
    {},
    {"temperature": 1.5, "frequency_penalty": 1.0},
    EVERYTHING,
]


def logits_behind(ids: Sequence[int], vocab: int = VOCAB) -> np.ndarray:
    """What a model would compute: it depends on every id before."""
    seed = [len(ids), *ids]
    return np.random.default_rng(seed).normal(0, 1.5, vocab).astype(np.float32)


def one_by_one(chooser: Chooser, ids: Sequence[int], count: int) -> list[int]:
    """Tokens drawn and accepted behind ``ids``."""
    chosen: list[int] = []
    for _ in range(count):
        chosen.append(chooser.draw(logits_behind([*ids, *chosen])))
        chooser.accept(chosen[-1])
    return chosen


def assert_same_state(chooser: Chooser, other: Chooser) -> None:
    """Both see the same distribution, to the bit, and draw the same."""
    logits = logits_behind([chooser.position])
    ours, theirs = chooser.distribution(logits), other.distribution(logits)
    assert chooser.position == other.position
    assert ours.ids.tolist() == theirs.ids.tolist()
    assert ours.probabilities.tolist() == theirs.probabilities.tolist()
    assert chooser.draw(logits) == other.draw(logits)


@pytest.mark.parametrize("options", OPTIONS)
@given(prompt=st.lists(IDS, max_size=6), steps=st.lists(st.one_of(IDS, st.just(-1)), max_size=30))
def test_what_is_taken_back_leaves_nothing(
    options: dict[str, Any], prompt: list[int], steps: list[int]
) -> None:
    """A chooser that accepted and took back is one that accepted only what was left."""
    params = SamplingParams(seed=5, **options)
    chooser, left = Chooser(params, prompt, VOCAB), []
    for step in steps:
        if step >= 0:
            chooser.accept(step)
            left.append(step)
        else:
            count = min(2, len(left))
            chooser.undo(count)
            del left[len(left) - count :]
    fresh = Chooser(params, prompt, VOCAB)
    for id_ in left:
        fresh.accept(id_)
    assert_same_state(chooser, fresh)


def interrupted_at(number: int, function: Callable[[], object]) -> bool:
    """Whether Ctrl-C came before that line of what a function calls, or it has ended."""
    lines, before = itertools.count(1), sys.gettrace()

    def trace(frame: Any, event: str, arg: Any) -> Any:
        is_line = event == "line" and frame.f_globals["__name__"].startswith("edgerun.engine.")
        if is_line and next(lines) == number:
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        function()
        return False
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("options", OPTIONS)
def test_ctrl_c_in_a_filter_leaves_nothing(options: dict[str, Any]) -> None:
    params, favours = SamplingParams(seed=5, **options), np.zeros(VOCAB, np.float32)
    favours[1] = 4  # what would repeat the prompt
    fresh = Chooser(params, [3, 1, 2, 3, 1, 2], VOCAB)
    fresh.accept(3)
    for number in itertools.count(1):
        chooser = Chooser(params, ids := [3, 1, 2, 3, 1, 2], VOCAB)
        chooser.accept(3)
        ids.append(3)  # the sequence's list, which grows
        is_cut = interrupted_at(number, partial(chooser.accept, 2))
        chooser.recover(len(ids))
        for logits in (favours, logits_behind(ids)):
            left = chooser.distribution(logits).probabilities
            assert left.tolist() == fresh.distribution(logits).probabilities.tolist()
        if not is_cut:
            break


def test_more_than_was_accepted_cannot_be_taken_back() -> None:
    chooser = Chooser(SamplingParams(), [1, 2], VOCAB)
    chooser.accept(3)
    for count in (2, -1):
        with pytest.raises(ValueError, match="to take back of 1"):
            chooser.undo(count)
    assert chooser.position == 3


def received(
    chooser: Chooser, prompt: list[int], rows: list[Any], drafted: Sequence[int]
) -> list[int]:
    """What a reply goes on with, of which some ids were drafted."""
    reply = Reply(list(prompt), Ending(99), chooser)
    reply.drafted = tuple(drafted)
    assert reply.receive(np.stack(rows)) == len(reply.ids) - len(prompt) - 1
    return reply.ids[len(prompt) :]


@pytest.mark.parametrize("options", OPTIONS)
@given(st.data())
def test_drafts_change_nothing_of_what_drawing_one_by_one_chooses(
    options: dict[str, Any], data: st.DataObject
) -> None:
    """Whatever was drafted: the ids are the same, and so is the state behind it."""
    params = SamplingParams(seed=data.draw(st.integers(0, 2**64 - 1)), **options)
    prompt = data.draw(st.lists(IDS, min_size=1, max_size=4))
    right = one_by_one(Chooser(params, prompt, VOCAB), prompt, 5)
    correct = data.draw(st.integers(0, 5))
    drafted = [*right[:correct], *data.draw(st.lists(IDS, max_size=5 - correct))][:4]
    rows = [logits_behind([*prompt, *drafted[:count]]) for count in range(len(drafted) + 1)]

    chooser = Chooser(params, prompt, VOCAB)
    chosen = received(chooser, prompt, rows, drafted)

    assert chosen == right[: len(chosen)]
    agreed = 0
    while agreed < len(drafted) and drafted[agreed] == right[agreed]:
        agreed += 1
    assert len(chosen) == agreed + 1
    behind = Chooser(params, prompt, VOCAB)
    one_by_one(behind, prompt, agreed + 1)
    assert_same_state(chooser, behind)


def cells(distribution: Any) -> Iterator[tuple[float, float]]:
    """A number within each stretch of [0, 1) that draws one token, and the stretch's length."""
    edges = [0.0, *np.cumsum(distribution.probabilities)]
    for low, high in itertools.pairwise(edges):
        yield (low + high) / 2, high - low


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "presence_penalty": 1.0}, EVERYTHING])
def test_a_draw_is_the_inverse_of_the_cumulative_distribution(options: dict[str, Any]) -> None:
    """So a number that is uniform draws every token with exactly its probability."""
    logits, numbers = logits_behind([4]), [0.0]
    chooser = Chooser(SamplingParams(**options), [4], VOCAB, lambda position: numbers[0])
    distribution = chooser.distribution(logits)
    assert distribution.probabilities.sum() == pytest.approx(1)
    low = 0.0
    for id_, probability in zip(distribution.ids, distribution.probabilities, strict=True):
        for share in (1e-4, 0.5, 1 - 1e-4):
            numbers[0] = low + share * probability
            assert chooser.draw(logits) == id_
        low += probability
    numbers[0] = math.nextafter(1, 0)
    assert chooser.draw(logits) == distribution.ids[-1]


def test_a_number_that_rounds_to_one_draws_the_last_token_that_is_possible() -> None:
    logits = np.array([1, 2, -np.inf], np.float32)
    assert Chooser(SamplingParams(), [4], 3, lambda position: 1.0).draw(logits) == 1


@pytest.mark.parametrize("drafted", list(itertools.product(range(3), repeat=2)))
def test_verified_ids_follow_the_target_distribution_exactly(drafted: tuple[int, int]) -> None:
    """Every combination of random numbers that makes a difference, weighed by its measure."""
    prompt, vocab = [0, 2], 3
    params = SamplingParams(temperature=1.3, repetition_penalty=1.4, frequency_penalty=0.7)
    rows = [logits_behind([*prompt, *drafted[:count]], vocab) for count in range(3)]

    def target(ids: Sequence[int]) -> Any:
        """The distribution behind ids, of which the last were drafted."""
        chooser = Chooser(params, prompt, vocab)
        for id_ in ids:
            chooser.accept(id_)
        return chooser.distribution(rows[len(ids)])

    measured: dict[tuple[int, ...], float] = defaultdict(float)
    targets = [target(drafted[:count]) for count in range(3)]
    for combination in itertools.product(*map(cells, targets)):
        numbers = [number for number, _ in combination]
        chooser = Chooser(
            params, prompt, vocab, lambda position, numbers=numbers: numbers[position - 2]
        )
        chosen = tuple(received(chooser, prompt, rows, drafted))
        measured[chosen] += math.prod(length for _, length in combination)

    expected: dict[tuple[int, ...], float] = {}
    agreed = 1.0
    for count, each in enumerate(targets):
        for id_, probability in zip(each.ids.tolist(), each.probabilities, strict=True):
            if count == 2 or id_ != drafted[count]:
                expected[(*drafted[:count], id_)] = agreed * probability
        if count < 2:
            agreed *= each.probabilities[each.ids.tolist().index(drafted[count])]
    assert measured.keys() == expected.keys()
    for chosen, measure in measured.items():
        assert measure == pytest.approx(expected[chosen], rel=1e-6)
    assert sum(measured.values()) == pytest.approx(1)


def test_random_numbers_depend_on_seed_and_position_alone() -> None:
    first = uniform(7)
    numbers = [first(position) for position in range(2000)]
    again = uniform(7)
    assert [again(position) for position in reversed(range(2000))] == numbers[::-1]
    assert min(numbers) >= 0 and max(numbers) < 1
    assert len({*numbers, *map(uniform(8), range(2000))}) == 4000
    assert np.mean(numbers) == pytest.approx(0.5, abs=0.03)
    assert np.corrcoef(numbers[1:], numbers[:-1])[0, 1] == pytest.approx(0, abs=0.08)
    # The numbers of a seed are a promise: texts that were generated with it can be again.
    assert (uniform(7)(3), uniform(2**64 - 1)(2**40)) == (0.9428997130665919, 0.8381317566808486)


def test_a_sequence_that_goes_on_elsewhere_draws_what_it_would_have_drawn() -> None:
    """As after preemption: a chooser behind a longer prompt stands at the same position."""
    params = SamplingParams(seed=11, temperature=1.2)
    whole = one_by_one(Chooser(params, [1, 2], VOCAB), [1, 2], 12)
    ids = [1, 2, *whole[:5]]
    assert one_by_one(Chooser(params, ids, VOCAB), ids, 7) == whole[5:]


def test_drawing_and_looking_change_nothing() -> None:
    chooser = Chooser(SamplingParams(seed=3, **EVERYTHING), [1], VOCAB)
    logits = logits_behind([1])
    draws = set()
    for _ in range(3):
        draws.add(chooser.draw(logits))
        chooser.distribution(logits_behind([2]))
    assert len(draws) == 1


def test_the_order_of_processors_is_that_of_the_list() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))

    def left(*processors: Processor) -> list[int]:
        chooser = Chooser(SamplingParams(processors=processors), (), 3)
        return chooser.distribution(logits).ids.tolist()

    flat, nucleus = Temperature(temperature=100), TopP(top_p=0.6)
    assert left(nucleus, flat) == [0, 1]
    assert left(flat, nucleus) == [0, 1]
    nucleus = TopP(top_p=0.7)
    assert left(nucleus, flat) == [0, 1]
    assert left(flat, nucleus) == [0, 1, 2]


def test_an_error_behind_a_draft_takes_nothing_of_what_came_before() -> None:
    params = SamplingParams(temperature=0, repetition_penalty=2.0)
    chooser = Chooser(params, [1], VOCAB)
    rows = [logits_behind([1]), np.full(VOCAB, np.nan, np.float32)]
    reply = Reply([1], Ending(99), chooser)
    drafted = chooser.draw(rows[0])
    reply.drafted = (drafted,)
    with pytest.raises(ChooserError, match="nan"):
        reply.receive(np.stack(rows))
    assert reply.ids == [1, drafted]
    assert chooser.position == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 0, "top_k": 5, "top_p": 0.5}, True),
        ({"temperature": 0, "repetition_penalty": 1.2}, True),
        ({"temperature": 0, "repetition_penalty": 1.2, "logit_bias": {3: 1.0}}, False),
        ({"temperature": 0, "logit_bias": {3: 1.0}}, False),
        ({"temperature": 1.0}, False),
    ],
)
def test_who_looks_at_nothing_but_the_largest_logit(options, expected):
    chooser = Chooser(SamplingParams(**options), prompt=[1, 2], vocab_size=8)
    assert chooser.takes_largest == expected
    adjusts = chooser.adjust is not None and chooser.takes_largest
    assert adjusts == (expected and "repetition_penalty" in options)


@pytest.mark.parametrize("seed", range(8))
def test_an_adjustment_is_what_penalties_do(seed):
    rng = np.random.default_rng(seed)
    options = {
        "repetition_penalty": float(rng.choice([1.0, 0.0, rng.uniform(0, 3)]) or 1e-9),
        "presence_penalty": float(rng.choice([0.0, rng.uniform(-2, 2)])),
        "frequency_penalty": float(rng.choice([0.5, rng.uniform(-2, 2)])),
    }
    prompt = rng.integers(0, VOCAB, int(rng.integers(0, 20))).tolist()
    chooser = Chooser(SamplingParams(temperature=0, **options), prompt, VOCAB)
    for id_ in rng.integers(0, VOCAB, 12).tolist():
        chooser.accept(id_)
    chooser.undo(2)
    assert chooser.adjust is not None
    adjustment = chooser.adjust()
    assert adjustment is not None and len(set(adjustment.ids.tolist())) == len(adjustment.ids)
    logits = rng.standard_normal(VOCAB).astype(np.float32)
    expected = logits.copy()
    values = expected[adjustment.ids]
    divided = np.where(values > 0, values / adjustment.divisors, values * adjustment.divisors)
    expected[adjustment.ids] = divided - adjustment.amounts
    np.testing.assert_array_equal(chooser._filtered(logits).logits, expected)
