"""Items become messages."""

from __future__ import annotations

from typing import Any

import pytest

from edgerun.server.problems import Problem
from edgerun.server.responses.request import ResponseFields, messages_of


def test_items_are_a_conversation() -> None:
    fields = ResponseFields(
        instructions="Be brief.",
        input=[
            {
                "role": "developer",
                "content": [
                    {"type": "input_text", "text": "a"},
                    {"type": "input_text", "text": "b"},
                ],
            },
            {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Hm."}],
            },
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "1",
                "output": [{"type": "input_text", "text": "x"}],
            },
            {"type": "function_call_output", "call_id": "2", "output": "y"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "c"}],
            },
        ],
    )
    calls = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for id_, name in (("1", "f"), ("2", "g"))
    ]
    assert messages_of(fields) == [
        {"role": "system", "content": "Be brief.\n\na\nb"},
        {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "x"},
        {"role": "tool", "tool_call_id": "2", "content": "y"},
        {"role": "assistant", "content": "c"},
    ]


def test_a_refusal_is_what_the_assistant_said() -> None:
    content = [{"type": "refusal", "refusal": "No."}, {"type": "output_text", "text": "Yes."}]
    item = {"role": "assistant", "content": content}
    said = {"role": "assistant", "content": "No.\nYes."}
    assert messages_of(ResponseFields(input=[item])) == [said]
    with pytest.raises(Problem, match="text only"):
        messages_of(ResponseFields(input=[{**item, "content": [{"type": "refusal"}]}]))


def test_what_servers_give_items_beside_their_text_makes_no_difference() -> None:
    given = {"id": "x_1", "status": "completed", "phase": "final_answer", "other": [1]}
    part = {"type": "output_text", "text": "x", "annotations": [], "logprobs": [], "other": 1}
    items = [{**thought("a"), **given, "encrypted_content": "b"}]
    items += [{**SAYS, **given, "type": "message", "content": [part]}]
    items += [{**CALLS, **given}, {**RESULT, **given}]
    plain = [thought("a"), SAYS, CALLS, RESULT]
    assert messages_of(ResponseFields(input=items)) == messages_of(ResponseFields(input=plain))


@pytest.mark.parametrize("role", ["system", "developer"])
def test_instructions_and_what_follows_are_one_message(role: str) -> None:
    """Of two most templates show the first alone, or refuse them."""
    item, user = {"role": role, "content": "Rhyme."}, {"role": "user", "content": "x"}
    system = {"role": "system", "content": "Be brief."}

    def messages(*items: Any) -> list[dict[str, Any]]:
        return messages_of(ResponseFields(instructions="Be brief.", input=list(items)))

    both = {**system, "content": "Be brief.\n\nRhyme."}
    assert messages(item, user) == [both, user]
    assert messages(item, item, user) == [both, item, user]
    assert messages(user, item) == [system, user, item]
    assert messages() == [system]
    assert messages_of(ResponseFields(input=[item, user])) == [item, user]


def thought(text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"type": "reasoning", "summary": [], "content": content}


def thinks(text: str, content: str = "", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "reasoning_content": text, **more}


SAYS = {"role": "assistant", "content": "x"}
CALLS = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
CALLED = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
RESULT = {"type": "function_call_output", "call_id": "1", "output": "y"}
TOLD = {"role": "tool", "tool_call_id": "1", "content": "y"}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ([thought("a"), thought(""), thought("b"), SAYS], [thinks("a\n\nb", "x")]),
        ([thought("a"), thought("b"), CALLS], [thinks("a\n\nb", tool_calls=CALLED)]),
        ([SAYS, thought("a"), CALLS], [SAYS, thinks("a", tool_calls=CALLED)]),
        ([SAYS, CALLS], [{**SAYS, "tool_calls": CALLED}]),
        ([CALLS, thought("a"), RESULT], [{**SAYS, "content": "", "tool_calls": CALLED}, "a", TOLD]),
        *(
            ([thought("a"), {"role": role, "content": "u"}, SAYS], ["a", role, SAYS])
            for role in ("user", "system", "developer")
        ),
        ([SAYS, thought("a"), thought("b")], [SAYS, "a\n\nb"]),
        ([thought("a"), SAYS, SAYS], [thinks("a", "x"), SAYS]),
    ],
)
def test_thoughts_belong_to_what_the_assistant_says_next(items: Any, messages: Any) -> None:
    """Texts here are thoughts alone, and names of roles messages of theirs."""
    roles = ("user", "system", "developer")
    expected = [
        each
        if isinstance(each, dict)
        else {"role": each, "content": "u"}
        if each in roles
        else thinks(each)
        for each in messages
    ]
    assert messages_of(ResponseFields(input=items)) == expected
