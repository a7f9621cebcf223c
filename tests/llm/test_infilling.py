"""Gaps between two texts, filled."""

from __future__ import annotations

from typing import Any

import pytest

from edgerun.errors import PromptError, UnsupportedError
from edgerun.llm.llm import LLM
from edgerun.llm.replies.several import text_replies
from edgerun.model.text.infill import FORMS, Infill
from tests.model.text.test_infill import tokenizer_with
from tests.support import fakes

BEFORE, AFTER, GAP = "def f(a):\n    return ", "\n\nprint(f(1))", "a + 1"
TOKENS = FORMS["fim"].tokens


def filler(monkeypatch: pytest.MonkeyPatch, end: str = "") -> LLM:
    """A model that fills the gap and then writes the text behind it, or a control token."""
    tokenizer = tokenizer_with(*TOKENS, "<|file_sep|>")
    monkeypatch.setattr(fakes, "VOCAB", tokenizer.vocab_size)
    prompt = Infill(tokenizer).encode(BEFORE, AFTER)
    ids = [*GAP.encode(), tokenizer.controls.id_of(end) if end else tokenizer.eos_ids[0]]
    script = {len(prompt) + index: id_ for index, id_ in enumerate([*ids, *b"more"])}
    return LLM(fakes.fake_model(fakes.FakeExecutable(script), tokenizer=tokenizer))


@pytest.mark.parametrize("end", ["", TOKENS[1], "<|file_sep|>"])
def test_a_gap_is_filled(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with filler(monkeypatch, end) as llm:
        completion = llm.generate(BEFORE, suffix=AFTER, temperature=0)
        stream = llm.stream(BEFORE, suffix=AFTER, temperature=0)
        pieces = "".join(stream)
        several = text_replies(llm, [BEFORE], 2, suffix=AFTER, temperature=0)
        texts = [each.result().text for each in several]
    assert (completion.text, completion.finish_reason) == (GAP, "stop")
    assert completion.prompt_tokens == len(Infill(llm.tokenizer).encode(BEFORE, AFTER))
    assert pieces == GAP and texts == [GAP, GAP]


def test_options_are_as_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with filler(monkeypatch) as llm:
        options: dict[str, Any] = {"suffix": AFTER, "temperature": 0}
        assert llm.generate(BEFORE, max_tokens=3, **options).text == GAP[:3]
        assert llm.generate(BEFORE, stop=" +", **options).text == "a"
        assert llm.generate(BEFORE, stop_ids=[ord("+")], **options).text == "a "
        most = [ord("+")] + [200] * 1023  # as many as there may be
        assert llm.generate(BEFORE, stop_ids=most, **options).text == "a "


@pytest.mark.parametrize(
    ("prompt", "suffix", "error", "message"),
    [
        ([1, 2], "a", PromptError, "the prompt is token ids, and there is a suffix"),
        (None, "a", PromptError, "the prompt is None; expected a text or"),
        ("a", 5, PromptError, "the suffix is 5; expected a text"),
        ("a", "\ud800", PromptError, "surrogate"),
        ("a", "x" * 10**6, PromptError, "context is 512"),
        ("x" * 300, "x" * 300, PromptError, "context is 512|does not fit"),
    ],
)
def test_what_cannot_be_filled_is_refused(
    prompt: Any, suffix: Any, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filler(monkeypatch) as llm, pytest.raises(error, match=message):
        llm.generate(prompt, suffix=suffix)


def test_a_model_without_such_tokens_fills_nothing() -> None:
    with LLM(fakes.fake_model()) as llm, pytest.raises(UnsupportedError, match="leave the suffix"):
        llm.generate("a", suffix="b")
