"""Replies follow what was asked, checked without llguidance: by JSON, by re, by all texts."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edgerun.engine.chooser.candidates import Candidates
from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.constraints import matcher
from edgerun.engine.sampling.structure import Structure
from edgerun.engine.sequence import Ending
from edgerun.engine.sequence import Sequence as Reply
from edgerun.errors import ChooserError, ConstraintError, SamplingError
from edgerun.model.text.tokenizer import Tokenizer
from tests.engine.constraints.schemas import is_valid, schemas
from tests.engine.constraints.vocabularies import (
    EOS,
    PARTS,
    PROMPT,
    chooser_for,
    logits_behind,
    reply,
    spelled,
    states,
)
from tests.support import fakes

EVERYTHING: dict[str, Any] = {
    "temperature": 1.5,
    "top_k": 30,
    "top_p": 0.95,
    "min_p": 0.01,
    "typical_p": 0.97,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.1,
    "logit_bias": {40: 2.5},
    "dry_multiplier": 0.5,
}
WAYS: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 2.0}, EVERYTHING]
SPM = Tokenizer.from_json(
    fakes.spm_tokenizer_json(
        prepend="first", merges=(("▁", "a"), ('"', ":"), ("{", '"'), ("t", "r"), ("e", "d"))
    ),
    {"bos_token": "<s>", "eos_token": "</s>"},
)
TOKENIZERS = {"byte-level": fakes.byte_tokenizer(), "sentencepiece": SPM}


def text_of(vocabulary: Any, ids: Sequence[int]) -> bytes:
    return b"".join(map(vocabulary.token_bytes, ids))


@pytest.mark.parametrize("way", WAYS, ids=["greedy", "sampled", "everything"])
@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=12)
@given(schema=schemas(), seed=st.integers(0, 99))
def test_replies_are_json_that_the_schema_describes(
    name: str, way: dict[str, Any], schema: dict[str, Any], seed: int
) -> None:
    tokenizer = TOKENIZERS[name]
    chooser = chooser_for(tokenizer, tokenizer.eos_ids, json_schema=schema, seed=seed, **way)
    ids, is_ended = reply(chooser, tokenizer.vocab_size, tokenizer.eos_ids, 400)
    assert is_ended
    text = text_of(tokenizer, ids).decode()
    assert is_valid(json.loads(text), schema)
    assert tokenizer.stream(continues=True).push(ids[0]) in text
    assert tokenizer.control_ids.isdisjoint(ids)


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": ["☃", "ü"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("folder", ["tokenizers/minimind/model", "models/onnx-tiny-random/phi3-v"])
def test_tokenizers_of_real_models_spell_what_was_asked(folder: str, shared_data: Path) -> None:
    text = (shared_data / folder / "tokenizer.json").read_text("utf-8")
    config = json.loads((shared_data / folder / "tokenizer_config.json").read_text("utf-8"))
    tokenizer = Tokenizer.from_json(text, config)
    options: dict[str, Any] = {"json_schema": PERSON, "temperature": 1.5, "seed": 2}
    chooser = chooser_for(tokenizer, tokenizer.eos_ids, **options)
    ids, is_ended = reply(chooser, tokenizer.vocab_size, tokenizer.eos_ids, 200)
    assert is_ended
    decoder = tokenizer.stream(continues=True)
    said = "".join(map(decoder.push, ids)) + decoder.finish()
    assert is_valid(json.loads(said), PERSON)


EXPRESSIONS = [
    r"[a-z]{2,5}( [a-z]+)?\.",
    r"(ja|nein|☃{2})!",
    r"[^a-y]{3}",
    r"[0-9]{4}-\d-\S{2}T/",
    r"(?i)yes",
    r"^[\U0001F600-\U0001F64F]{2}$",
    r" +x",
]


@pytest.mark.parametrize("way", WAYS, ids=["greedy", "sampled", "everything"])
@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("regex", EXPRESSIONS)
def test_replies_match_a_regular_expression(regex: str, name: str, way: dict[str, Any]) -> None:
    tokenizer = TOKENIZERS[name]
    pattern = re.compile(regex)
    for seed in range(3):
        chooser = chooser_for(tokenizer, tokenizer.eos_ids, regex=regex, seed=seed, **way)
        ids, is_ended = reply(chooser, tokenizer.vocab_size, tokenizer.eos_ids, 200)
        text = text_of(tokenizer, ids).decode(errors="strict" if is_ended else "ignore")
        assert not is_ended or pattern.fullmatch(text), text


def expressions() -> st.SearchStrategy[tuple[str, frozenset[str]]]:
    """Regular expressions, each with all texts that it matches."""

    def joined(pairs: list[tuple[str, frozenset[str]]]) -> tuple[str, frozenset[str]]:
        texts = frozenset({""})
        for _, each in pairs:
            texts = frozenset(left + right for left in texts for right in each)
        return "".join(f"(?:{text})" for text, _ in pairs), texts

    def either(pairs: list[tuple[str, frozenset[str]]]) -> tuple[str, frozenset[str]]:
        return "|".join(text for text, _ in pairs), frozenset().union(*(each for _, each in pairs))

    def maybe(pair: tuple[str, frozenset[str]]) -> tuple[str, frozenset[str]]:
        return f"(?:{pair[0]})?", pair[1] | {""}

    leaves = st.sampled_from(PARTS).map(lambda text: (re.escape(text), frozenset({text})))
    return st.recursive(
        leaves,
        lambda each: st.one_of(
            st.lists(each, min_size=1, max_size=3).map(joined),
            st.lists(each, min_size=1, max_size=3).map(either),
            each.map(maybe),
        ),
        max_leaves=6,
    )


PIECES = st.lists(
    st.lists(st.sampled_from("".join(PARTS)), min_size=1, max_size=3)
    .map(lambda each: "".join(each).encode())
    .flatmap(lambda data: st.slices(len(data)).map(lambda part: data[part])),
    max_size=12,
)


@settings(max_examples=60)
@given(expressions(), PIECES, st.integers(0, 2**32), st.booleans())
def test_what_is_allowed_is_what_some_text_goes_on_with(
    pair: tuple[str, frozenset[str]], pieces: list[bytes], seed: int, greedy: bool
) -> None:
    """Tried token by token, against the list of all texts; tokens may end within a character."""
    regex, matched = pair
    assume(matched != {""})
    vocabulary = spelled(pieces)
    size = vocabulary.vocab_size
    texts = {text.encode() for text in matched}
    begun = {text[:end] for text in texts for end in range(len(text) + 1)}
    options: dict[str, Any] = {"temperature": 0 if greedy else 1.0, "seed": seed}
    chooser = chooser_for(vocabulary, [EOS], regex=regex, **options)

    def allowed(ids: list[int]) -> list[int]:
        before = text_of(vocabulary, ids)
        fits = [before + vocabulary.tokens[id_] in begun for id_ in range(size)]
        plain = [
            id_ not in vocabulary.control_ids and vocabulary.tokens[id_] for id_ in range(size)
        ]
        ends = [id_ == EOS and before in texts for id_ in range(size)]
        return [i for i in range(size) if (fits[i] and plain[i]) or ends[i]]

    def watch(ids: list[int], logits: Any) -> None:
        expected = allowed(ids)
        likeliest = max(expected, key=lambda id_: (logits[id_], -id_))
        distribution = chooser.distribution(logits)
        assert distribution.ids.tolist() == ([likeliest] if greedy else expected)

    ids, is_ended = reply(chooser, size, [EOS], 60, watch)
    assert is_ended
    assert text_of(vocabulary, ids) in texts
    assert chooser.is_complete == (set(allowed(ids)) == {EOS})


@given(
    st.sampled_from(["[ab]{2,9}", "(ab)*b", "a?(☃|é)+/?", "abab"]),
    st.lists(st.integers(-1, 12), max_size=25),
)
def test_what_is_taken_back_leaves_nothing(regex: str, steps: list[int]) -> None:
    """Allowed tokens or not: after ``undo`` all is as if they had never been accepted."""
    vocabulary = spelled([b"ab", "☃".encode()[:2], b"bb"])
    chooser = chooser_for(vocabulary, [EOS], regex=regex, seed=1)
    left: list[int] = []
    for step in steps:
        if step >= 0:
            chooser.accept(step)
            left.append(step)
            assert chooser.is_complete in (True, False)
        else:
            count = min(2, len(left))
            chooser.undo(count)
            del left[len(left) - count :]
    fresh = chooser_for(vocabulary, [EOS], regex=regex, seed=1)
    for id_ in left:
        fresh.accept(id_)
    assert states(chooser, vocabulary.vocab_size) == states(fresh, vocabulary.vocab_size)


def test_a_grammar_is_not_blamed_for_logits_that_are_none() -> None:
    vocabulary = spelled([])
    (filter_,) = chooser_for(vocabulary, [EOS], regex="a+b")._filters
    logits = np.full(vocabulary.vocab_size, np.nan, np.float32)
    with pytest.raises(ChooserError, match="maximum is nan") as failure:
        filter_.apply(Candidates(logits))
    assert not isinstance(failure.value, ConstraintError)


def test_a_matcher_that_came_to_a_limit_is_begun_again() -> None:
    vocabulary = spelled([])
    chooser = chooser_for(vocabulary, [EOS], regex="a+b", temperature=0)
    a = vocabulary.tokens.index(b"a")
    chooser.accept(a)
    before = states(chooser, vocabulary.vocab_size)
    chooser.accept(a)
    (filter_,) = chooser._filters
    filter_._walks[0]._matcher.consume_token(vocabulary.vocab_size - 1)  # type: ignore[attr-defined]
    assert filter_._walks[0].has_error  # type: ignore[attr-defined]
    with pytest.raises(ConstraintError, match="regex allows no token to go on with: "):
        chooser.draw(logits_behind([], vocabulary.vocab_size))
    assert not chooser.is_complete
    chooser.undo(1)
    assert states(chooser, vocabulary.vocab_size) == before


@settings(max_examples=40)
@given(st.data())
def test_drafts_change_nothing(data: st.DataObject) -> None:
    """Whatever was drafted, right, allowed or neither: the ids are those of drawing one by one."""
    vocabulary = spelled([b"ab", b"ba", b"aab", "☃".encode()[:1]])
    size = vocabulary.vocab_size
    regex = data.draw(st.sampled_from(["[ab]{3,6}", "(a|b☃)+é?", "(abab|baba)/"]))
    options = {"regex": regex, **data.draw(st.sampled_from(WAYS[:2])), "seed": 4}
    alone = chooser_for(vocabulary, [EOS], **options)
    ids, _ = reply(alone, size, [EOS], 99)
    ids += [EOS] * (not alone.is_complete)
    right = data.draw(st.integers(0, len(ids)))
    drafted = [*ids[:right], *data.draw(st.lists(st.integers(0, size - 1), max_size=4))]
    pairs = list(zip(drafted, ids, strict=False))
    agreed = next((at for at, (left, id_) in enumerate(pairs) if left != id_), len(pairs))

    chooser = chooser_for(vocabulary, [EOS], **options)
    sequence = Reply(list(PROMPT), Ending(99, stop_ids=frozenset([EOS])), chooser)
    sequence.drafted = tuple(drafted)
    rows = [logits_behind(drafted[:count], size) for count in range(len(drafted) + 1)]
    sequence.receive(np.stack(rows))

    chosen = sequence.ids[len(PROMPT) :]
    assert chosen == ids[: min(agreed + 1, len(ids))]
    assert sequence.is_finished == (chosen == ids)


def test_a_reply_at_the_only_end_of_its_grammar_is_complete_at_once() -> None:
    """No end token is computed, and none is needed; the last token is part of the text."""
    vocabulary = spelled([])
    ids = [vocabulary.tokens.index(letter) for letter in (b"a", b"b")]
    for stop_ids in ([EOS], []):
        sequence = Reply(
            list(PROMPT),
            Ending(3, "length", frozenset(stop_ids)),
            chooser_for(vocabulary, stop_ids, regex="ab", temperature=0),
        )
        for _ in ids:
            assert not sequence.is_finished
            sequence.receive(logits_behind([], vocabulary.vocab_size)[None])
        assert sequence.ids[1:] == ids
        assert (sequence.is_finished, sequence.finish_reason) == (True, "stop")
        taken = [sequence.take(), sequence.take(), sequence.take()]
        assert [token and (token.id, token.finish_reason) for token in taken] == [
            (ids[0], None),
            (ids[1], None),
            None,
        ]


def test_a_reply_that_is_computed_again_knows_whether_it_is_complete() -> None:
    vocabulary = spelled([])
    chooser = chooser_for(vocabulary, [EOS], regex="ab", temperature=0)
    sequence = Reply(list(PROMPT), Ending(9), chooser)
    for _ in range(2):
        sequence.receive(logits_behind([], vocabulary.vocab_size)[None])
    sequence.ids.pop()  # the call was interrupted between two changes
    sequence.recover(1)
    assert not sequence.is_complete
    assert not sequence.is_finished
    sequence.receive(logits_behind([], vocabulary.vocab_size)[None])
    assert sequence.is_finished


def test_replies_that_were_asked_for_together_share_a_grammar_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that takes 15 MB and 0.1 s to compile took 0.9 GB and 10 s for 60 replies."""
    vocabulary = spelled([])
    compiled, compile_ = [], matcher._matcher
    monkeypatch.setattr(matcher, "_matcher", lambda *of: compiled.append(of) or compile_(*of))
    options: dict[str, Any] = {"regex": "(a|ba)+", "temperature": 2.0, "seed": 1}

    def params() -> SamplingParams:
        return SamplingParams(**options).with_vocabulary(vocabulary)

    def begun(params: list[SamplingParams]) -> list[Chooser]:
        return [Chooser(each, [], vocabulary.vocab_size) for each in params]

    together = begun(params().for_replies(4))
    assert len(compiled) == 1
    alone = begun([params().for_replies(4)[index] for index in range(4)])
    assert len(compiled) == 5
    for step in range(5):
        for sharing, other in zip(together, alone, strict=True):
            logits = logits_behind([step], vocabulary.vocab_size)
            drawn = sharing.draw(logits)
            assert drawn == other.draw(logits)
            sharing.accept(drawn)
            other.accept(drawn)
            if step == 2:
                sharing.undo(1)
                sharing.accept(drawn)


def test_it_may_stand_behind_others_and_go_to_another_process() -> None:
    from edgerun.engine.sampling.top_k import TopK

    vocabulary = spelled([])
    last = Structure(regex="b+")
    params = SamplingParams(processors=[TopK(top_k=1000), last]).with_vocabulary(vocabulary)
    chooser = Chooser(params, [], vocabulary.vocab_size)
    b = vocabulary.tokens.index(b"b")
    assert chooser.draw(logits_behind([], vocabulary.vocab_size)) == b
    arrived = pickle.loads(pickle.dumps(params))
    assert arrived == params
    assert len(pickle.dumps(params)) < 2000
    with pytest.raises(SamplingError, match="regex is about texts, and nothing says what tokens"):
        Chooser(arrived, [], vocabulary.vocab_size)
    few = SamplingParams(processors=[TopK(top_k=1), Structure(regex="a")])
    chooser = Chooser(few.with_vocabulary(vocabulary), [], vocabulary.vocab_size)
    likeliest_is_b = np.zeros(vocabulary.vocab_size, np.float32)
    likeliest_is_b[b] = 9
    with pytest.raises(ConstraintError, match="regex allows no token to go on with"):
        chooser.draw(likeliest_is_b)


def test_it_is_no_matter_of_the_model_and_comes_first() -> None:
    from edgerun.engine.chooser.processor import processor_types

    assert processor_types()[0] is Structure
    assert Structure.callers_only
    assert not Structure.keeps_likeliest
    assert SamplingParams(regex="a").shapes_text
    assert not SamplingParams().shapes_text
