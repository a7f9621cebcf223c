"""The client that programs of Anthropic's API have.

https://github.com/anthropics/anthropic-sdk-python
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from edgerun.llm.llm import LLM
from tests.llm.chats.test_thinking import CHAT, REPLY, that_says
from tests.llm.chats.test_tools import CALL, hermes_that_says
from tests.server.messages.test_messages import FLAT, QUESTION
from tests.server.responses.test_events import Breaking
from tests.server.served import Served, served
from tests.support import fakes

anthropic = pytest.importorskip("anthropic")

KEY = "correct-horse-battery"
FIELDS: Any = {
    "model": "fake",
    "max_tokens": 200,
    "messages": [{"role": "user", "content": QUESTION}],
}


@contextmanager
def calls(client: Served, key: str = "none") -> Iterator[Any]:
    url = str(client.base_url)
    with anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=30) as api:
        yield api


def test_a_message_and_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(that_says(REPLY, monkeypatch, CHAT), key=KEY) as client, calls(client, KEY) as api:
        whole = api.messages.create(**FIELDS)
        beta = api.beta.messages.create(**FIELDS, betas=["context-management-2025-06-27"])
        with api.messages.stream(**FIELDS) as stream:
            text = "".join(stream.text_stream)
            last = stream.get_final_message()
        tokens = api.messages.count_tokens(model="fake", messages=FIELDS["messages"]).input_tokens
    assert whole._request_id.startswith("req_")
    for message in (whole, beta, last):
        thoughts, said = message.content
        assert (thoughts.type, thoughts.thinking) == ("thinking", "Is it <b>?")
        assert (said.type, said.text, message.stop_reason) == ("text", text, "end_turn")
        usage = message.usage
        assert usage.input_tokens + usage.cache_read_input_tokens == tokens
        assert (usage.output_tokens, message.model) == (20, "fake")


def test_tools_are_called_and_answered() -> None:
    with served(hermes_that_says(f"Let me see.\n{CALL}")) as client, calls(client) as api:
        whole = api.messages.create(**FIELDS, tools=FLAT)
        with api.messages.stream(**FIELDS, tools=FLAT) as stream:
            last = stream.get_final_message()
        for message in (whole, last):
            said, use = message.content
            assert (said.text, message.stop_reason) == ("Let me see.", "tool_use")
            assert (use.name, use.input) == ("get_weather", {"city": "Paris"})
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "rain"}
        messages = [
            *FIELDS["messages"],
            {"role": "assistant", "content": last.content},
            {"role": "user", "content": [result]},
        ]
        again = api.messages.create(**{**FIELDS, "messages": messages}, tools=FLAT)
    assert again.usage.input_tokens + again.usage.cache_read_input_tokens > (
        whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    )


def test_errors_have_their_types(client: Served) -> None:
    with calls(client) as api:
        for fields, kind, says in (
            ({"model": "claude-x"}, anthropic.NotFoundError, "this server has 'fake'"),
            ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens is 0"),
            ({"messages": []}, anthropic.BadRequestError, "messages is empty"),
        ):
            with pytest.raises(kind, match=says) as raised:
                api.messages.create(**{**FIELDS, **fields})
            assert raised.value.body["type"] == "error"
    with (
        served(key=KEY) as locked,
        calls(locked) as api,
        pytest.raises(anthropic.AuthenticationError, match="asks for its key"),
    ):
        api.messages.create(**FIELDS)


def test_what_fails_in_the_middle_is_raised() -> None:
    llm = LLM(fakes.fake_model(Breaking(), template=CHAT))
    with (
        served(llm) as client,
        calls(client) as api,
        api.messages.stream(**FIELDS) as stream,
        pytest.raises(anthropic.APIStatusError, match="the model failed"),
    ):
        stream.get_final_message()
