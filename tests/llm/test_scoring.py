"""Bits per byte and perplexity, on the fake model of ``tests/support/fakes.py``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from edgerun.errors import BackendError, InputError
from edgerun.llm.llm import LLM
from edgerun.llm.scoring import score_texts, split_documents
from tests.llm.test_llm import Broken, model
from tests.support import fakes


def test_scores_match_the_probabilities_of_single_tokens() -> None:
    llm = model()
    text = "hello world"
    ids = llm.tokenizer.encode(text)
    nats = 0.0
    for place in range(1, len(ids)):
        logits = np.zeros(fakes.VOCAB)
        logits[fakes.next_token(ids[:place])] = 10
        nats -= logits[ids[place]] - np.log(np.exp(logits).sum())
    (score,) = score_texts(llm, [text])
    assert score.nats == pytest.approx(nats, rel=1e-6)
    assert (score.tokens, score.bytes, score.windows) == (11, 11, 1)
    assert score.perplexity == pytest.approx(np.exp(nats / 11))
    assert score.bits_per_byte == pytest.approx(nats / np.log(2) / 11)


def test_the_sums_after_each_text_stay_what_they_are() -> None:
    first, second, third = score_texts(model(), ["one", "two", "three"])
    assert [each.bytes for each in (first, second, third)] == [3, 6, 11]
    (alone,) = score_texts(model(), ["one"])
    assert first == alone and alone.nats < second.nats < third.nats


def test_a_window_has_room_behind_the_beginning_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgerun.llm.scoring._start", lambda llm: [fakes.BOS, fakes.START])
    with pytest.raises(InputError, match="a window of 2 tokens; expected 3 to 512"):
        next(score_texts(model(), ["text"], 2))
    with pytest.raises(InputError, match="the context is 2 tokens; scoring needs 3"):
        next(score_texts(model(context=2), ["text"]))
    (score,) = score_texts(model(), ["text"], 3)
    assert (score.windows, score.tokens) == (4, 4)


def test_windows_cover_every_token_once() -> None:
    (score,) = score_texts(model(), ["x" * 100], 33)
    assert (score.tokens, score.windows) == (100, 4)
    tokenizer = fakes.byte_tokenizer(add_bos_token=False, bos_token=None)
    (score,) = score_texts(model(tokenizer=tokenizer), ["é" * 50], 40)
    assert (score.tokens, score.windows, score.bytes) == (97, 3, 97)


def test_a_context_without_room_for_a_next_token_is_refused() -> None:
    with pytest.raises(InputError, match="the context is 1 token; scoring needs 2"):
        next(score_texts(model(context=1), ["text"]))


def test_a_model_that_computes_nan_has_no_score() -> None:
    with pytest.raises(BackendError, match="nan"):
        list(score_texts(LLM(fakes.fake_model(Broken())), ["hello"]))


def test_documents_are_split_at_separator_lines() -> None:
    text = "a\nb\n<|end|>\n\n<|end|>\r\nc <|end|>\n"
    assert list(split_documents(text, "<|end|>")) == ["a\nb", "c <|end|>"]
    assert list(split_documents(text, None)) == [text]


@pytest.mark.parametrize(
    "use",
    [lambda llm: llm.generate("x", max_tokens=1), lambda llm: llm.close()],
    ids=["generate", "close"],
)
def test_who_takes_logits_does_not_use_the_model_meanwhile(use: Callable[[LLM], object]) -> None:
    llm, ids = model(), [1, 2, 3]
    with pytest.raises(InputError, match="while it computes uses the model itself"):
        llm.take_logits(ids, lambda logits: use(llm) and None)
    blocks: list[np.ndarray] = []
    llm.take_logits(ids, lambda logits: blocks.append(logits.copy()))
    assert np.array_equal(np.concatenate(blocks), np.concatenate(list(llm.logits(ids))))


def test_logits_are_taken_by_a_function() -> None:
    with pytest.raises(InputError, match="take is 3; expected a function"):
        model().take_logits([1], 3)  # type: ignore[arg-type]
