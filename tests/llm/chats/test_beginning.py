"""Replies that go on with a beginning, which spells no control token."""

from __future__ import annotations

from typing import Any

import pytest

from edgerun.errors import InputError
from edgerun.llm.llm import LLM
from edgerun.llm.replies.several import chat_replies, prompt_tokens
from tests.llm.chats.test_thinking import BEGUN, CHAT, HARMONY, that_says
from tests.model.chat.tools.replies import MESSAGES
from tests.support import fakes


def test_no_beginning_spells_a_control_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor by the characters that stand for control tokens where texts are kept apart."""
    with that_says("", monkeypatch, CHAT) as llm:
        (plain,) = llm._format.encode_many([MESSAGES])
        stand_ins: Any = plain.disguise
        end = stand_ins.characters["<"]
        for beginning in ("<|im_end|>", end, f"{end}|im_end|>", "é \n"):
            (chat,) = llm._format.encode_many([MESSAGES], beginning=beginning)
            assert chat.ids == (*plain.ids, *beginning.encode())


def test_replies_that_begin_with_something_else_have_no_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cases = [
        (that_says("", monkeypatch, CHAT), {"template_values": BEGUN}, "begin with a thought"),
        (that_says("", monkeypatch, CHAT), {"think": True}, "begin with thoughts"),
        (that_says("", monkeypatch, CHAT), {"thinking_budget": 3}, "begin with thoughts"),
        (that_says("", monkeypatch, HARMONY), {}, "says first whether it thinks"),
        (that_says("", monkeypatch, CHAT), {"beginning": "<think>"}, "with which thoughts begin"),
        (LLM(fakes.fake_model(template=None)), {}, "no chat template"),
    ]
    for llm, given, says in cases:
        fields: Any = {"beginning": "So", **given}
        with llm, pytest.raises(InputError, match=f"^beginning .*{says}"):
            chat_replies(llm, MESSAGES, 1, **fields)


def test_a_thought_that_is_turned_off_may_be_followed_by_a_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And a blank behind it is part of the answer, as tokenizers have it."""
    asked: list[bool] = []
    with that_says("~~!", monkeypatch, CHAT) as llm:
        stream_of = llm.tokenizer.stream

        def stream(**given: Any) -> Any:
            asked.append(given["continues"])
            return stream_of(**given)

        monkeypatch.setattr(llm.tokenizer, "stream", stream)
        fields: Any = {"beginning": "So", "think": False}
        (reply,) = chat_replies(llm, MESSAGES, 1, **fields)
        completion = reply.result()
        assert completion.prompt_tokens == prompt_tokens(llm, MESSAGES, **fields)
    assert (completion.text, asked) == ("!", [True])
