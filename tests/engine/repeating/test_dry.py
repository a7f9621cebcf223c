"""DRY against a definition written again here, which compares every place with the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.chooser.repeating.repeats import Repeats
from edgerun.engine.sampling.dry import MOST, Dry
from edgerun.engine.sampling.top_k import TopK
from edgerun.errors import SamplingError

TEXTS = [
    b"a",
    b"b",
    b"c",
    b" a",
    b"ab",
    b"\n",
    b"x\ny",
    b"#",
    b"##",
    b"<end>",
    b"",
    b"\xc3",
    b"\xa9",
]
VOCAB = len(TEXTS)
IDS = st.integers(0, VOCAB - 1)
FEW = st.integers(0, 2)


class Spelled:
    """A vocabulary of a few tokens."""

    control_ids = frozenset([TEXTS.index(b"<end>")])

    def token_bytes(self, id_: int) -> bytes:
        return TEXTS[id_]


def params(**options: Any) -> SamplingParams:
    return SamplingParams(**{"dry_multiplier": 0.8, **options}).with_vocabulary(Spelled())


def breaks(ids: Sequence[int], texts: Sequence[str]) -> bool:
    """Whether the last id is a control token, or a text ends within it."""
    if ids[-1] in Spelled.control_ids:
        return True
    joined = b"".join(TEXTS[id_] for id_ in ids)
    ends = range(len(joined) - len(TEXTS[ids[-1]]) + 1, len(joined) + 1)
    return any(joined[:end].endswith(text.encode()) for end in ends for text in texts)


def amounts(ids: Sequence[int], options: dict[str, Any]) -> np.ndarray:
    """What every token loses, float64 ``[VOCAB]``; one place after the other, longest match."""
    dry = next(each for each in params(**options).processors if isinstance(each, Dry))
    lost, texts = np.zeros(VOCAB), dry.dry_sequence_breakers
    run = 0
    while run < len(ids) and not breaks(ids[: len(ids) - run], texts):
        run += 1
    begin = 0 if dry.dry_penalty_last_n < 0 else max(0, len(ids) - dry.dry_penalty_last_n)
    for place in range(begin, len(ids)):
        length = 0
        while length < min(run, place - begin) and ids[place - 1 - length] == ids[-1 - length]:
            length += 1
        if length >= dry.dry_allowed_length and not breaks([*ids, ids[place]], texts):
            amount = dry.dry_multiplier * dry.dry_base ** (length - dry.dry_allowed_length)
            lost[ids[place]] = max(lost[ids[place]], min(amount, MOST))
    return lost


def measured(chooser: Chooser) -> np.ndarray:
    """What a chooser subtracts from every logit."""
    return -chooser._filtered(np.zeros(VOCAB, np.float32)).logits.astype(np.float64)


CASES: list[dict[str, Any]] = [
    {},
    {"dry_allowed_length": 1, "dry_base": 1, "dry_sequence_breakers": []},
    {"dry_allowed_length": 3, "dry_penalty_last_n": 9, "dry_sequence_breakers": "b"},
    {"dry_sequence_breakers": ["##", "\ny", "é", "aba"], "dry_base": 3.0},
    {"dry_allowed_length": 2, "dry_penalty_last_n": 6, "dry_sequence_breakers": []},
    {"dry_allowed_length": 10, "dry_sequence_breakers": [], "dry_multiplier": 5},
    {"dry_allowed_length": 1, "dry_sequence_breakers": [], "dry_base": 10, "dry_multiplier": 99},
]


@pytest.mark.parametrize("options", CASES)
@given(
    prompt=st.one_of(st.lists(FEW, max_size=40), st.lists(IDS, max_size=40)),
    steps=st.lists(st.one_of(FEW, IDS, st.sampled_from([-1, -2, -3])), max_size=40),
)
def test_tokens_lose_what_the_longest_repetition_costs(
    options: dict[str, Any], prompt: list[int], steps: list[int]
) -> None:
    """After every token that is accepted, and after any number taken back."""
    chooser, ids = Chooser(params(**options), prompt, VOCAB), list(prompt)
    for step in [*steps, 0]:
        count = min(-step, len(ids) - len(prompt))
        if step < 0:
            chooser.undo(count)
            del ids[len(ids) - count :]
        else:
            chooser.accept(step)
            ids.append(step)
        np.testing.assert_allclose(measured(chooser), amounts(ids, options), rtol=1e-5)


def test_the_worked_example_of_the_method() -> None:
    """ids 1 2 3 3 2 3 4 1 2 3: 3 may follow 1 2 3, 2 followed 3, 4 followed 2 3."""
    ids = [1, 2, 3, 3, 2, 3, 4, 1, 2, 3]
    options = {"dry_sequence_breakers": [], "dry_base": 2, "dry_multiplier": 1}
    chooser = Chooser(SamplingParams(**options, dry_allowed_length=1), ids, 5)
    lost = -chooser._filtered(np.zeros(5, np.float32)).logits
    assert lost.tolist() == pytest.approx([0, 0, 1, 4, 2])


@pytest.mark.parametrize("temperature", [0, 1e-3])
def test_the_likeliest_changes_when_it_would_repeat(temperature: float) -> None:
    logits = np.array([0, 1, 0, 0.5, 0], np.float32)
    options = {"temperature": temperature, "dry_sequence_breakers": []}
    ids = [2, 0, 1, 4, 2, 0]
    assert Chooser(SamplingParams(**options), ids, 5).draw(logits) == 1
    assert Chooser(SamplingParams(**options, dry_multiplier=0.8), ids, 5).draw(logits) == 3


def test_greedy_choice_says_what_it_adjusts() -> None:
    chooser = Chooser(params(temperature=0), [0, 1, 2, 0, 1], VOCAB)
    assert chooser.takes_largest and chooser.adjust is not None
    adjustment = chooser.adjust()
    assert adjustment is not None
    assert (adjustment.ids.tolist(), adjustment.divisors.tolist()) == ([2], [1])
    assert adjustment.amounts.tolist() == pytest.approx([0.8])
    chooser.accept(3)
    assert chooser.adjust() is None


def test_it_may_stand_behind_a_filter() -> None:
    """Where candidates are no longer the whole vocabulary."""
    options = {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_sequence_breakers": []}
    ids, logits = [4, 0, 4, 3, 4], np.array([9, 1, 2, 8, 7, 7], np.float32)
    processors = (TopK(top_k=4), Dry(**options))
    distribution = Chooser(SamplingParams(processors=processors), ids, 6)._filtered(logits)
    assert distribution.ids is not None
    assert distribution.ids.tolist() == [0, 3, 4, 5]
    assert distribution.logits.tolist() == pytest.approx([7, 6, 7, 7])
    processors = (TopK(top_k=1), Dry(**options))  # 3 is no candidate any more
    left = Chooser(SamplingParams(processors=processors), ids, 6)._filtered(logits)
    assert left.logits.tolist() == pytest.approx([7])


def test_what_it_costs_does_not_grow_with_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands of places that are as good as the first, one is looked at."""
    compared = []
    original = Repeats._match
    monkeypatch.setattr(Repeats, "_match", lambda *given: compared.append(1) or original(*given))
    chooser = Chooser(params(), [0, 1, 3] * 2000, VOCAB)
    assert measured(chooser)[0] == pytest.approx(MOST)
    assert len(compared) == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "options",
    [
        {"dry_base": 1.00001, "dry_allowed_length": 1},  # a run of 900,000 may cost more
        {"dry_allowed_length": 2**16 - 5, "dry_penalty_last_n": 10**6},
    ],
)
def test_what_it_costs_does_not_grow_with_what_is_repeated(options: dict[str, Any]) -> None:
    """Thousands of places, each with thousands of ids before it that are those at the end.

    Comparing them one by one takes minutes.
    """
    part = 2**16
    prompt = [0] * (2 * part) + [1] + [0] * part
    chooser = Chooser(params(dry_sequence_breakers=[], **options), prompt, VOCAB)
    for _ in range(20):
        assert measured(chooser)[0] > 0
        chooser.accept(0)
    chooser.undo(20)
    assert measured(chooser)[0] > 0


def test_it_goes_on_where_comparing_takes_too_long() -> None:
    """In a reply that becomes a loop, with what is taken back."""
    options = {"dry_allowed_length": 1, "dry_base": 1.001, "dry_sequence_breakers": []}
    prompt = [0, 1, 0, 2, 0]
    chooser, ids = Chooser(params(**options), prompt, VOCAB), list(prompt)
    for step in range(12):
        if step % 4 == 3:
            chooser.undo(20)
            del ids[-20:]
        for id_ in [0, 1, 0] * 20:
            chooser.accept(id_)
            ids.append(id_)
        if step % 2:
            np.testing.assert_allclose(measured(chooser), amounts(ids, options), rtol=1e-5)


@pytest.mark.timeout(60)
def test_tokens_that_spell_nothing_are_not_looked_through() -> None:
    """A text may end behind thousands of them; looking back at each takes minutes."""
    nothing, count = TEXTS.index(b""), 100_000
    chooser = Chooser(params(dry_sequence_breakers=["ab"]), [0, *[nothing] * count], VOCAB)
    assert measured(chooser).tolist() == pytest.approx([0] * nothing + [MOST] + [0] * 2)
    chooser.accept(1)
    assert measured(chooser).tolist() == [0] * VOCAB


def test_all_replies_to_a_prompt_share_what_is_said_of_tokens() -> None:
    """Whatever there are of them: what a token spells is asked once."""
    asked = []

    class Counted(Spelled):
        def token_bytes(self, id_: int) -> bytes:
            asked.append(id_)
            return super().token_bytes(id_)

    given = SamplingParams(dry_multiplier=0.8).with_vocabulary(Counted())
    for seed in range(30):
        Chooser(given.replaced(seed=seed), [0, 1, 5, 0, 1] * 100, VOCAB)
    assert sorted(asked) == [0, 1, 5]


@pytest.mark.parametrize("options", [{"dry_penalty_last_n": 0}, {"dry_multiplier": 0}])
def test_it_can_be_left_out(options: dict[str, Any]) -> None:
    chooser = Chooser(params(temperature=0, **options), [0, 1, 2, 0, 1], VOCAB)
    assert chooser.takes_largest and chooser.adjust is None


def test_breakers_need_the_texts_of_tokens() -> None:
    with pytest.raises(SamplingError, match="nothing says what tokens spell"):
        Chooser(SamplingParams(dry_multiplier=1), [1], VOCAB)


BAD = [
    ("dry_multiplier", -0.1),
    ("dry_multiplier", 101),
    ("dry_base", 0.9),
    ("dry_allowed_length", 0),
    ("dry_allowed_length", 1.5),
    ("dry_penalty_last_n", -2),
    ("dry_sequence_breakers", 5),
    ("dry_sequence_breakers", [5]),
    ("dry_sequence_breakers", [""]),
    ("dry_sequence_breakers", ["x" * 257]),
    ("dry_sequence_breakers", ["x"] * 65),
    ("dry_sequence_breakers", ["\ud800"]),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_values_outside_their_range_are_one_clear_sentence(name: str, value: Any) -> None:
    with pytest.raises(SamplingError) as caught:
        SamplingParams(**{name: value})
    message = str(caught.value)
    assert message.startswith(name) and "expected" in message
    assert message.isascii() and "\n" not in message


def test_without_dry_params_keep_no_vocabulary() -> None:
    """So that they can be sent to another process, as they are."""
    assert Dry().with_vocabulary(object()) == Dry()  # type: ignore[arg-type]
    assert Dry().with_vocabulary(object()).vocabulary is None  # type: ignore[arg-type]
