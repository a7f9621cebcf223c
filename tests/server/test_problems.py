"""What callers are told of a request that cannot be answered: which field it is about."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.served import CHAT, HELLO, Served


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"temperature": -1}, "temperature"),
        ({"stop": 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {"999": 1}}, "logit_bias"),
        ({"json_schema": 5}, "json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "response_format"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"": 1}}, "chat_template_kwargs"),
        ({"messages": [*HELLO, {"role": "x", "content": "y"}]}, "messages[1]"),
        ({"tools": [{}]}, "tools[0]"),
        ({"tool_choice": "x"}, "tool_choice"),
    ],
)
def test_errors_name_the_field_that_was_sent(
    client: Served, fields: dict[str, Any], param: str
) -> None:
    error = client.chat(**fields).json()["error"]
    assert error["param"] == param and error["message"].startswith(f"{param} ")


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "messages", "messages is missing, and has to be there"),
        ({"messages": []}, "messages", "the conversation is empty: pass at least one message"),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, "messages", "context is 512"),
        ({"messages": HELLO * 600}, "messages", "context is 512"),
        ({"messages": HELLO, "metadata": {"a": 1}}, "metadata", "metadata[...]: expected `str`"),
        (
            {"messages": HELLO, "response_format": {"json_schema": {}}},
            "response_format.type",
            "response_format.type is missing",
        ),
        (
            {"messages": HELLO, "max_completion_tokens": 0, "max_tokens": 12},
            "max_completion_tokens",
            "leave one out",
        ),
    ],
)
def test_errors_name_the_field_whatever_is_wrong_with_it(
    client: Served, body: dict[str, Any], param: str, says: str
) -> None:
    error = client.post(CHAT, json=body).json()["error"]
    assert error["param"] == param and says in error["message"]


def test_programs_can_tell_errors_apart(client: Served) -> None:
    long = [{"role": "user", "content": "x" * 9000}]
    error = client.chat(messages=long).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert client.chat(max_token=1).json()["error"]["param"] == "max_token"
    assert client.chat(model="x").json()["error"]["code"] == "model_not_found"
