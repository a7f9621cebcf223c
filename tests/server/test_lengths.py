"""Around the end of the context: a prompt is whole, or refused with both counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgerun.llm.llm import LLM
from edgerun.model.chat.template import ChatTemplate
from tests.server.served import CHAT, RESPONSES, TEXT, served
from tests.support import fakes

CONTEXT = 64
AROUND = range(-2, 3)


def _chat(length: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x" * length}]}


BODIES: dict[str, Callable[[int], dict[str, Any]]] = {
    CHAT: _chat,
    RESPONSES: lambda length: {"input": "x" * length},
    TEXT: lambda length: {"prompt": [7] * length},
    "text": lambda length: {"prompt": "x" * length},
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_no_prompt_is_cut(name: str, stream: bool) -> None:
    path = TEXT if name == "text" else name
    with served(LLM(fakes.fake_model(context=CONTEXT))) as client:

        def post(length: int, **fields: Any) -> Any:
            return client.post(path, json={**BODIES[name](length), **fields})

        usage = post(1).json()["usage"]
        beside = usage.get("prompt_tokens", usage.get("input_tokens")) - 1
        for more in AROUND:
            tokens = CONTEXT + more
            answer = post(tokens - beside, stream=stream)
            if tokens < CONTEXT:
                assert answer.status_code == 200
                usage = post(tokens - beside).json()["usage"]
                assert usage["total_tokens"] <= CONTEXT
                assert usage.get("prompt_tokens", usage.get("input_tokens")) == tokens
            else:
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
                assert f"{tokens} tokens" in error["message"]
                assert f"context is {CONTEXT}" in error["message"]


def test_more_messages_than_tokens_are_not_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """30,000 short ones took the template half a second, in which no other prompt was encoded."""
    monkeypatch.setattr(ChatTemplate, "render_many", None)
    with served(LLM(fakes.fake_model(context=CONTEXT))) as client:
        for path, field in ((CHAT, "messages"), (RESPONSES, "input")):
            messages = [{"role": "user", "content": "x"}] * (CONTEXT + 1)
            error = client.post(path, json={field: messages}).json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert f"{CONTEXT + 1} messages, and the context is {CONTEXT}" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_no_reply_goes_beyond_the_context(stream: bool) -> None:
    """And where the context ends it before as many tokens as were asked for, it says so."""
    with served(LLM(fakes.fake_model(context=CONTEXT))) as client:
        for more in AROUND:
            answer = client.text(
                [7] * 20, max_tokens=CONTEXT - 20 + more, ignore_eos=True, stream=stream
            )
            assert '"finish_reason":"length"' in answer.text
            says = '"finish_detail":"context"' in answer.text
            assert says is (more > 0)
