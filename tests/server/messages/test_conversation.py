"""Turns of blocks become messages as chat templates know them."""

from __future__ import annotations

from typing import Any

import pytest

from edgerun.server.messages.conversation import conversation_of

USER = {"role": "user", "content": "u"}


def text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def says(*content: Any, role: str = "assistant") -> dict[str, Any]:
    return {"role": role, "content": [*content]}


def use(id_: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": "f", "input": arguments}


def result(id_: str, content: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id_, "content": content, **more}


def thought(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": "s"}


def call(id_: str, **arguments: Any) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": "f", "arguments": arguments}}


def told(id_: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": content}


SYSTEM = {"role": "system", "content": "s"}
ASSISTANT = {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([USER], [USER]),
        ([says(text("a"), text("é\n"), role="user")], [{"role": "user", "content": "a\né\n"}]),
        ([USER, USER], [{"role": "user", "content": "u\nu"}]),
        ([says(role="user")], [{"role": "user", "content": ""}]),
        ([{"role": "user", "content": ""}], [{"role": "user", "content": ""}]),
        ([USER, says(), USER], [USER, ASSISTANT, USER]),
        (
            [USER, says(thought("t"), text("a")), says(thought("v"), text("b")), USER],
            [USER, {**ASSISTANT, "content": "a\nb", "reasoning_content": "t\n\nv"}, USER],
        ),
        ([USER, says({"type": "redacted_thinking", "data": "x"}), USER], [USER, ASSISTANT, USER]),
        (
            [
                USER,
                says(text("a"), use("1", x="é"), use("!?", y=[None])),
                says(text("z"), result("!?", "b"), role="user"),
                says(result("1", [text("c"), text("d")]), role="user"),
            ],
            [
                USER,
                {
                    **ASSISTANT,
                    "content": "a",
                    "tool_calls": [call("1", x="é"), call("!?", y=[None])],
                },
                told("!?", "b"),
                told("1", "c\nd"),
                {"role": "user", "content": "z"},
            ],
        ),
        (
            [USER, says(use("1")), says(result("1", is_error=True), role="user")],
            [USER, {**ASSISTANT, "tool_calls": [call("1")]}, told("1", "Error: ")],
        ),
        (
            [USER, says(use("1")), SYSTEM, says(result("1", "a", is_error=False), role="user")],
            [USER, {**ASSISTANT, "tool_calls": [call("1")]}, SYSTEM, told("1", "a")],
        ),
    ],
)
def test_turns_are_messages(messages: Any, expected: Any) -> None:
    assert conversation_of(messages, None) == (expected, "")
    assert conversation_of(messages, "") == ([{**SYSTEM, "content": ""}, *expected], "")


def test_a_system_text_has_parts_and_is_one_message() -> None:
    bill = text("x-anthropic-billing-header: cc_version=1; cch=5f2")
    expected = [{**SYSTEM, "content": "a\nb\ns"}, USER]
    assert conversation_of([SYSTEM, USER], [bill, text("a"), text("b")]).messages == expected
    for nothing in ([bill], []):
        assert conversation_of([USER], nothing).messages == [USER]


def test_the_last_turn_may_be_the_beginning_of_the_answer() -> None:
    last = {"role": "assistant", "content": "So: "}
    assert conversation_of([USER, last], None) == ([USER], "So: ")
    assert conversation_of([USER, last, says(text(" a"))], None) == ([USER], "So: \n a")
    assert conversation_of([USER, says()], None) == ([USER], "")
