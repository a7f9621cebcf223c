"""What may be part of a reply, and what ends it: texts, control tokens, stop ids."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.constraints.matcher import make_impossible, token_tree
from edgerun.errors import ConstraintError, SamplingError
from tests.engine.constraints.vocabularies import (
    EOS,
    Spelled,
    chooser_for,
    logits_behind,
    reply,
    spelled,
    states,
)


def test_a_text_that_is_a_stop_ends_a_reply_wherever_it_may_stand() -> None:
    vocabulary = spelled([])
    b = vocabulary.tokens.index(b"b")
    chooser = chooser_for(vocabulary, [EOS, b], regex="aba", temperature=0)
    assert reply(chooser, vocabulary.vocab_size, [EOS, b], 9) == (
        [vocabulary.tokens.index(b"a")],
        True,
    )


CONTROLS = [b"<end>", b"<think>", b"<hide>", b"a", b"<", b">", b"think", b"<end>", b"\xff", b"hide"]
SPOKEN = Spelled(CONTROLS, frozenset({0, 1, 2}), (0,), frozenset({2}))


@pytest.mark.parametrize(
    ("grammar", "first"),
    [
        ("start: /(?s:.)+/", [3, 4, 5, 6, 7, 9]),
        ("start: <think>", [1]),
        ('start: <think> "a" | "a"', [1, 3]),
        ('start: "<think>"', [4]),
        ("start: <[0-3]>", [3]),
        (
            '%llguidance {"allow_invalid_utf8": true}\nstart: /[\\x00-\\xff]+/',
            [3, 4, 5, 6, 7, 9],
        ),
    ],
)
def test_control_tokens_come_of_no_text(grammar: str, first: list[int]) -> None:
    """They are part of a reply where the grammar names them, and hidden ones never are."""
    chooser = chooser_for(SPOKEN, [0], grammar=grammar)
    assert chooser.distribution(logits_behind([], len(CONTROLS))).ids.tolist() == first


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("start: <hide>", 'line 1, column 8: unknown special token: "<hide>"; expected a grammar'),
        ("start: <end>", 'unknown special token: "<end>"'),
        ("start: <[0]>", "grammar allows no text of this model's tokens, but for the empty one"),
        ('start: "ü"', "grammar allows no text of this model's tokens"),
    ],
)
def test_what_no_token_can_say_is_refused_before_anything_is_computed(
    grammar: str, words: str
) -> None:
    with pytest.raises(SamplingError) as refusal:
        chooser_for(SPOKEN, [0], grammar=grammar)
    assert words in str(refusal.value)


def test_a_reply_that_no_token_goes_on_with_fails_alone() -> None:
    vocabulary = Spelled([b"a", b"<end>"], frozenset({1}), (1,), frozenset({1}))
    chooser = chooser_for(vocabulary, [1], regex="ab", temperature=0)
    chooser.accept(chooser.draw(logits_behind([], 2)))
    with pytest.raises(ConstraintError, match="to go on with: no text follows it"):
        chooser.draw(logits_behind([], 2))


def test_the_tree_of_a_vocabulary_is_built_once_and_goes_with_it() -> None:
    vocabulary = spelled([])
    size = vocabulary.vocab_size
    tree = token_tree(vocabulary, size)
    with ThreadPoolExecutor(4) as pool:
        assert all(each is tree for each in pool.map(token_tree, [vocabulary] * 8, [size] * 8))
    assert token_tree(vocabulary, size + 1) is not tree
    forgotten = weakref.ref(vocabulary)
    del vocabulary, tree
    gc.collect()
    assert forgotten() is None


def test_what_is_not_allowed_is_impossible_and_all_else_as_it_was() -> None:
    rng = np.random.default_rng(1)
    for size in (1, 7, 5000):
        logits = rng.normal(0, 30, size).astype(np.float32)
        logits[rng.random(size) < 0.1] = -np.inf
        logits[rng.random(size) < 0.1] = -0.0
        allowed = rng.random(size) < 0.5
        expected = np.where(allowed, logits, -np.inf).astype(np.float32)
        make_impossible(logits, allowed)
        assert logits.tobytes() == expected.tobytes()


def test_logits_wider_or_narrower_than_the_vocabulary() -> None:
    vocabulary = spelled([])
    for width in (vocabulary.vocab_size + 70, vocabulary.tokens.index(b"b") + 1):
        params = SamplingParams(regex="[ab]+", temperature=1.0).with_vocabulary(vocabulary)
        chooser = Chooser(params, [], width, stop_ids=[EOS, width + 5])
        expected = [vocabulary.tokens.index(letter) for letter in (b"a", b"b")]
        assert chooser.distribution(logits_behind([], width)).ids.tolist() == expected
        chooser.accept(expected[0])
        assert chooser.distribution(logits_behind([], width)).ids.tolist() == [EOS, *expected]


def test_what_ends_replies_is_no_text_even_if_it_looks_like_one() -> None:
    vocabulary = Spelled([b"a", b"a", b"b"], eos_ids=(0,))
    chooser = chooser_for(vocabulary, [0], regex="a{2}b?")
    seen = []
    for id_ in (1, 1):
        seen.append(chooser.distribution(logits_behind([], 3)).ids.tolist())
        chooser.accept(id_)
    assert [*seen, chooser.distribution(logits_behind([], 3)).ids.tolist()] == [[1], [1], [0, 2]]


@pytest.mark.parametrize("regex", ["ab*", "a"])
def test_behind_a_token_that_is_not_allowed_nothing_is(regex: str) -> None:
    vocabulary = spelled([])
    chooser = chooser_for(vocabulary, [EOS], regex=regex)
    chooser.accept(vocabulary.tokens.index(b"a"))
    before = states(chooser, vocabulary.vocab_size)
    for id_ in (vocabulary.tokens.index(b"/"), vocabulary.tokens.index(b"b"), EOS):
        chooser.accept(id_)
        assert not chooser.is_complete
        with pytest.raises(ConstraintError, match="regex allows no token to go on with"):
            chooser.draw(logits_behind([], vocabulary.vocab_size))
    chooser.undo(3)
    assert states(chooser, vocabulary.vocab_size) == before
    assert chooser.is_complete == (regex == "a")
