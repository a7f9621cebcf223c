"""Several replies to one prompt: each as if alone, and the prompt is encoded once."""

from __future__ import annotations

from typing import Any

import pytest

from edgerun.engine.chooser.params import MAX_SEED
from edgerun.errors import PromptError, SamplingError
from edgerun.llm.llm import LLM
from edgerun.llm.replies.several import chat_replies, text_replies
from tests.llm.chats.test_tools import HERMES, TOOLS
from tests.support import fakes

ASKED = [{"role": "user", "content": "hi"}]
OPTIONS: dict[str, Any] = {"max_tokens": 6, "temperature": 1.5}
LAST = MAX_SEED - 1


@pytest.mark.parametrize(("seed", "seeds"), [(7, (7, 8, 9)), (LAST, (LAST, MAX_SEED, 0))])
def test_each_reply_is_as_if_alone_with_a_seed_of_its_own(
    seed: int, seeds: tuple[int, ...]
) -> None:
    with LLM(fakes.fake_model()) as llm:
        chats = chat_replies(llm, ASKED, 3, seed=seed, **OPTIONS)
        assert [stream.result().text for stream in chats] == [
            llm.chat(ASKED, seed=each, **OPTIONS).text for each in seeds
        ]
        texts = text_replies(llm, ["one", [116, 119, 111]], 3, seed=seed, **OPTIONS)
        assert [stream.result().text for stream in texts] == [
            llm.generate(prompt, seed=each, **OPTIONS).text
            for prompt in ("one", [116, 119, 111])
            for each in seeds
        ]


def test_without_a_seed_replies_differ() -> None:
    with LLM(fakes.fake_model()) as llm:
        streams = chat_replies(llm, ASKED, 8, max_tokens=6, temperature=3)
        assert len({stream.result().text for stream in streams}) > 1


def test_a_conversation_is_encoded_once_and_so_is_what_is_asked_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("llguidance")
    from edgerun.model.chat.tools import grammar

    asked: list[str] = []

    def counted(name: str, function: Any) -> Any:
        return lambda *arguments, **named: asked.append(name) or function(*arguments, **named)

    with LLM(fakes.fake_model(template=HERMES, context=4096)) as llm:
        for owner, name in (
            (llm._format.template, "render_many"),
            (llm.tokenizer, "encode_templates"),
            (grammar, "grammar_of_calls"),
        ):
            monkeypatch.setattr(owner, name, counted(name, getattr(owner, name)))
        options: Any = {"tools": TOOLS, "tool_choice": "required"}
        chat_replies(llm, ASKED, 1, **options)
        once, asked[:] = sorted(asked), []
        assert len(chat_replies(llm, ASKED, 20, **options)) == 20
    assert sorted(asked) == sorted(set(once))


@pytest.mark.parametrize("options", [{"seed": -1}, {"seed": "x"}, {"top_p": 7}])
def test_what_is_refused_is_refused(options: Any) -> None:
    with LLM(fakes.fake_model()) as llm:
        for count in (1, 3):
            with pytest.raises(SamplingError):
                chat_replies(llm, ASKED, count, **options)
            with pytest.raises(SamplingError):
                text_replies(llm, ["x"], count, **options)
            with pytest.raises(PromptError, match="the prompt is empty"):
                text_replies(llm, ["x", ""], count)
