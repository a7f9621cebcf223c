"""Functions that a model calls, in the form of OpenAI's API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.llm.chats.test_tools import CALL, TOOLS, hermes_that_says
from tests.model.chat.tools.replies import MESSAGES
from tests.server.served import HELLO, Served, served
from tests.server.test_chat import events

SAID = f"Let me see.\n{CALL}\n{CALL.replace('Paris', 'Rome')}"


@pytest.fixture(scope="module")
def calling() -> Iterator[Served]:
    with served(hermes_that_says(SAID)) as client:
        yield client


def test_calls_are_a_part_of_the_message(calling: Served) -> None:
    (choice,) = calling.chat(messages=MESSAGES, tools=TOOLS).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    calls = choice["message"]["tool_calls"]
    assert [call["type"] for call in calls] == ["function"] * 2
    cities = [json.loads(call["function"]["arguments"])["city"] for call in calls]
    assert cities == ["Paris", "Rome"]
    assert {call["function"]["name"] for call in calls} == {"get_weather"}
    assert len({call["id"] for call in calls}) == 2


def test_calls_come_at_the_end_of_a_stream(calling: Served) -> None:
    whole = calling.chat(messages=MESSAGES, tools=TOOLS).json()["choices"][0]["message"]
    chunks = events(calling.chat(messages=MESSAGES, tools=TOOLS, stream=True).text)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    assert text == whole["content"]
    (said,) = [choice["delta"] for choice in choices if "tool_calls" in choice["delta"]]
    for number, (call, same) in enumerate(
        zip(said["tool_calls"], whole["tool_calls"], strict=True)
    ):
        assert (call["index"], call["function"]) == (number, same["function"])
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_a_call_without_text_has_no_content() -> None:
    with served(hermes_that_says(CALL)) as client:
        message = client.chat(messages=MESSAGES, tools=TOOLS).json()["choices"][0]["message"]
        assert message["content"] is None and len(message["tool_calls"]) == 1


def test_the_official_client_reads_them(calling: Served) -> None:
    openai = pytest.importorskip("openai")
    url = str(calling.base_url.join("/v1"))
    fields: Any = {"model": "fake", "messages": MESSAGES, "tools": TOOLS}
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as api:
        message = api.chat.completions.create(**fields).choices[0].message
        with api.chat.completions.stream(**fields) as stream:
            last = stream.get_final_completion().choices[0].message
    calls = [[call.function.arguments for call in each.tool_calls] for each in (message, last)]
    assert calls[0] == calls[1] and len(calls[0]) == 2


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tools": "x"}, "tools: expected `array"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0]"),
        ({"tools": TOOLS, "tool_choice": "always"}, "'always'"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "'x'"),
        ({"tool_choice": "required"}, "no tools"),
        ({"tools": TOOLS, "parallel_tool_calls": False}, "leave it out, or have it call"),
        ({"tools": TOOLS, "regex": "a+"}, "leave out tools"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"colour": "red"}}, "colour"),
    ],
)
def test_what_cannot_be_asked_is_refused(calling: Served, fields: Any, says: str) -> None:
    answer = calling.chat(messages=HELLO, **fields)
    assert (answer.status_code, says in answer.json()["error"]["message"]) == (400, True)
    assert calling.server.replies.under_way == 0


NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_single_call_can_be_forced(choice: Any) -> None:
    pytest.importorskip("llguidance")
    with served(hermes_that_says(CALL * 2)) as client:
        fields = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": choice, "temperature": 0}
        both = client.chat(**fields).json()["choices"][0]["message"]
        one = client.chat(**fields, parallel_tool_calls=False).json()["choices"][0]
    assert (len(both["tool_calls"]) == 1) == (choice is NAMED)
    assert (len(one["message"]["tool_calls"]), one["finish_reason"]) == (1, "tool_calls")


@pytest.mark.parametrize(("said", "reason"), [(CALL, "tool_calls"), ('{"n":3}', "stop")])
def test_replies_call_or_answer_as_a_schema_says(said: str, reason: str) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    with served(hermes_that_says(said.replace(': "Paris', ':"Paris'))) as client:
        fields = {"messages": MESSAGES, "tools": TOOLS, "response_format": form, "temperature": 0}
        choice = client.chat(**fields, parallel_tool_calls=False).json()["choices"][0]
    assert choice["finish_reason"] == reason
    assert choice["message"]["content"] == (None if reason == "tool_calls" else said)
    assert len(choice["message"].get("tool_calls", [])) == (reason == "tool_calls")


def test_where_nothing_is_called_it_does_not_matter_how_often(calling: Served) -> None:
    fields = {"tools": TOOLS, "tool_choice": "none", "max_tokens": 3}
    assert calling.chat(messages=HELLO, **fields, parallel_tool_calls=False).status_code == 200


def test_nothing_but_defaults_changes_nothing(calling: Served) -> None:
    plain = {"tools": [], "tool_choice": "none", "parallel_tool_calls": True}
    message = calling.chat(messages=HELLO, max_tokens=3, **plain).json()["choices"][0]["message"]
    assert "tool_calls" not in message
