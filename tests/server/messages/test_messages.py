"""``/v1/messages``: conversations as Anthropic's API has them, whole; and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from edgerun.llm.llm import LLM
from tests.llm.chats.test_thinking import CHAT, HARMONY, REPLY, that_says
from tests.llm.chats.test_tools import CALL, TOOLS, hermes_that_says
from tests.model.chat.tools.replies import MESSAGES as CHATTED
from tests.server.served import MESSAGES, Served, served
from tests.support import fakes

QUESTION = CHATTED[0]["content"]
USER = {"role": "user", "content": QUESTION}
FLAT = [
    {"name": each["name"], "input_schema": each["parameters"]}
    for each in (tool["function"] for tool in TOOLS)
]
EFFORTS = CHAT.replace("{% if thinking %}", "{{ reasoning_effort }}{% if thinking %}")


@pytest.fixture(scope="module")
def thinking() -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch, served(that_says(REPLY, patch, CHAT)) as client:
        yield client


@pytest.fixture(scope="module")
def calling(thinking: Served) -> Iterator[Served]:
    """After the other, which changes how many tokens all models have."""
    with served(hermes_that_says(f"Let me see.\n{CALL}")) as client:
        yield client


@pytest.fixture(scope="module")
def client(thinking: Served) -> Iterator[Served]:
    """Likewise: the server that other files share would have as many tokens for ever."""
    with served() as client:
        yield client


def ask(client: Served, **fields: Any) -> Any:
    return client.post(MESSAGES, json={"messages": [USER], "max_tokens": 200, **fields})


def count(client: Served, **fields: Any) -> Any:
    return client.post(f"{MESSAGES}/count_tokens", json={"messages": [USER], **fields})


def text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def test_a_message_has_thoughts_and_text(thinking: Served) -> None:
    answer = ask(thinking, model="fake").json()
    assert answer["id"].startswith("msg_")
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "fake")
    thoughts = {"type": "thinking", "thinking": "Is it <b>?", "signature": ""}
    assert answer["content"] == [thoughts, text("Hi!\n")]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    usage = answer["usage"]
    assert (usage["output_tokens"], usage["cache_creation_input_tokens"]) == (20, 0)
    assert usage["output_tokens_details"] == {"thinking_tokens": 14}


def test_thoughts_are_sent_back(thinking: Served) -> None:
    said = {"role": "assistant", "content": ask(thinking).json()["content"]}
    assert ask(thinking, messages=[USER, said, USER], max_tokens=1).status_code == 200


def test_what_was_cached_is_told_apart(thinking: Served) -> None:
    tokens = count(thinking).json()["input_tokens"]
    for _ in range(2):
        usage = ask(thinking, max_tokens=2).json()["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == tokens
    assert usage["cache_read_input_tokens"] > 0


def test_thoughts_may_be_left_out(thinking: Served) -> None:
    answer = ask(thinking, thinking={"type": "adaptive", "display": "omitted"}).json()
    assert [block.get("thinking") for block in answer["content"]] == ["", None]
    assert answer["content"][1] == text("Hi!\n")


@pytest.mark.parametrize("form", [{"thinking": {"type": "enabled", "budget_tokens": 4}}])
def test_thoughts_are_bounded(thinking: Served, form: Any) -> None:
    answer = ask(thinking, chat_template_kwargs={}, **form).json()
    assert answer["usage"]["output_tokens_details"]["thinking_tokens"] == 5


def test_a_switch_of_the_template_turns_thoughts_on_and_off(thinking: Served) -> None:
    """The template begins a thought, which is two tokens: its mark and a line break."""
    tokens = [
        count(thinking, **fields).json()["input_tokens"]
        for fields in (
            {},
            {"thinking": {"type": "adaptive"}},
            {"thinking": {"type": "disabled"}},
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        )
    ]
    assert tokens == [tokens[0]] * 3 + [tokens[0] + 2]


def test_a_model_without_a_switch_is_kept_from_thinking(monkeypatch: pytest.MonkeyPatch) -> None:
    say = "<|channel|>analysis<|message|>" + "x" * 50
    with served(that_says(say, monkeypatch, HARMONY)) as client:
        free = ask(client, max_tokens=30).json()
        answer = ask(client, thinking={"type": "disabled"}, max_tokens=30).json()
    assert free["content"][0]["type"] == "thinking"
    assert [block["type"] for block in answer["content"]] == ["text"]


def test_effort_is_for_templates_that_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(that_says(REPLY, monkeypatch, EFFORTS)) as client:
        tokens = [
            count(client, output_config={"effort": effort}).json()["input_tokens"]
            for effort in ("low", "medium")
        ]
    assert tokens[1] == tokens[0] + len("medium") - len("low")


def test_a_stop_sequence_is_told(thinking: Served) -> None:
    for sequence, said in (("!", "Hi"), ("\n", "Hi!")):  # also of blanks alone
        answer = ask(thinking, stop_sequences=["ab", sequence]).json()
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", sequence)
        assert answer["content"][1] == text(said)


def test_stop_texts_that_no_caller_gave_are_no_stop_sequences() -> None:
    """A model without a chat template ends its replies at the next speaker's name."""
    script = {place: ord(letter) for place, letter in enumerate("a\nUser: x" * 30, 1)}
    with served(LLM(fakes.fake_model(fakes.FakeExecutable(script), template=None))) as client:
        answer = ask(client, stop_sequences=["~~"]).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)


def test_a_message_that_is_cut_says_so(thinking: Served) -> None:
    answer = ask(thinking, max_tokens=4).json()
    assert answer["stop_reason"] == "max_tokens"
    assert [block["type"] for block in answer["content"]] == ["thinking"]
    with served(LLM(fakes.fake_model(context=40))) as client:
        answer = ask(client, messages=[{"role": "user", "content": "Hello"}]).json()
    assert answer["stop_reason"] == "model_context_window_exceeded"


def test_tools_are_called_and_answered(calling: Served) -> None:
    answer = ask(calling, tools=FLAT).json()
    said, use = answer["content"]
    assert said == text("Let me see.") and answer["stop_reason"] == "tool_use"
    assert (use["type"], use["name"], use["input"]) == (
        "tool_use",
        "get_weather",
        {"city": "Paris"},
    )
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": [text("rain")]}
    conversation = [
        USER,
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [result]},
    ]
    again = ask(calling, messages=conversation, tools=FLAT, max_tokens=1)
    assert again.status_code == 200
    tokens = count(calling, messages=conversation, tools=FLAT).json()["input_tokens"]
    assert (
        tokens
        > count(calling, tools=FLAT).json()["input_tokens"]
        > count(calling).json()["input_tokens"]
    )


def test_a_reply_of_nothing_is_an_empty_text(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(that_says("", monkeypatch)) as client:
        assert ask(client).json()["content"] == [text("")]


@pytest.mark.parametrize("kind", ["any", "tool"])
def test_a_call_can_be_forced(kind: str) -> None:
    pytest.importorskip("llguidance")
    named = {"name": "get_weather"} if kind == "tool" else {}
    choice = {"type": kind, "disable_parallel_tool_use": True, **named}
    with served(hermes_that_says(CALL * 2)) as client:
        answer = ask(client, tools=FLAT, tool_choice=choice, temperature=0).json()
    (use,) = answer["content"]
    assert (use["name"], answer["stop_reason"]) == ("get_weather", "tool_use")


@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_replies_follow_a_schema(thinking: Served, place: str) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"]}
    form = {"type": "json_schema", "schema": {**schema, "additionalProperties": False}}
    fields = {place: {"format": form} if place == "output_config" else form}
    assert json.loads(ask(thinking, **fields).json()["content"][-1]["text"]) == {"a": 7}


@pytest.mark.parametrize("beginning", ["Is it <b>? ", "é <|im_end|>"])
def test_a_reply_may_go_on_with_its_beginning(
    beginning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model says the same from a place of the prompt on, so that it repeats no letter."""
    said = [USER, {"role": "assistant", "content": beginning}]
    with served(that_says("~" * len(beginning.encode()) + "  so!", monkeypatch, CHAT)) as client:
        asked, begun = (
            count(client, messages=each).json()["input_tokens"] for each in (said[:1], said)
        )
        whole = ask(client, messages=said).json()
        with_none = ask(client, messages=[USER, {"role": "assistant", "content": []}]).json()
    assert begun == asked + len(beginning.encode())
    assert whole["content"] == [text("  so!")]
    assert with_none["content"][0]["text"].startswith("~")


def test_what_asks_for_nothing_is_accepted(calling: Served) -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    tool = {**FLAT[0], **cached, "type": "custom", "strict": True, "defer_loading": None}
    tool |= {"allowed_callers": ["direct"], "input_examples": [{"city": "Paris"}]}
    answer = calling.post(
        f"{MESSAGES}?beta=true",
        headers={"anthropic-version": "2023-06-01", "anthropic-beta": "a,b"},
        json={
            "messages": [{"role": "user", "content": [{**text("x"), **cached}]}],
            "system": [{**text("y"), **cached, "citations": None}],
            "max_tokens": 1,
            "model": None,
            "tools": [tool],
            "tool_choice": {"type": "none"},
            "metadata": {"user_id": "z"},
            "service_tier": "auto",
            "diagnostics": {"previous_message_id": None},
            "speed": "standard",
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"},
            "thinking": {"type": "disabled"},
            "top_k": 3,
            "top_p": 0.5,
            "min_p": 0.1,
            "seed": 1,
            **cached,
        },
    )
    assert answer.status_code == 200, answer.text


def refusal(answer: Any) -> str:
    """Why a request is refused, which is the caller's fault."""
    error = answer.json()
    assert error["type"] == "error" and {*error} == {"type", "error"}
    kind = "not_found_error" if answer.status_code == 404 else "invalid_request_error"
    assert answer.status_code in (400, 404) and error["error"]["type"] == kind
    message: str = error["error"]["message"]
    return message


def blocks(*content: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [*content]}]}


BEGUN = {"messages": [USER, {"role": "assistant", "content": "So"}]}
USE = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "1"}
FORM = {"type": "json_schema", "schema": {}}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"messages": []}, "messages is empty"),
        ({"messages": "x"}, "messages: expected"),
        ({"messages": [5]}, "messages[0]: expected"),
        ({"messages": [{"content": "x"}]}, "messages[0].role is None; expected user"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role is 'tool'"),
        ({"messages": [{"role": "user"}]}, "messages[0].content is None; expected a text or"),
        ({"messages": [{**USER, "name": "x"}]}, "messages[0] has no field 'name'"),
        (
            {"messages": [USER, *blocks(USE, role="assistant")["messages"]]},
            "messages[1].content[0] is a block of type 'tool_use' in the last message",
        ),
        ({**BEGUN, "tools": FLAT, "tool_choice": {"type": "any"}}, "messages[1] is what the reply"),
        ({**BEGUN, "regex": "a"}, "it is to have a form: leave out one of the two"),
        ({**BEGUN, "thinking": {"type": "enabled"}}, "messages[1] is what the reply goes on with"),
        (blocks({"type": "image", "source": {}}), "messages[0].content[0] is of type 'image'"),
        (blocks({"type": "document"}), "models here read text only"),
        (blocks(5), "messages[0].content[0] is 5"),
        (blocks({"type": ["x"]}), "messages[0].content[0] is {"),
        (blocks({"type": "text"}), "messages[0].content[0].text is None; expected a text"),
        (blocks({**text("x"), "txt": 1}), "did you mean 'text'"),
        (blocks(USE), "is of type 'tool_use'"),
        (blocks(RESULT), "is the result of '1', which no tool_use"),
        (blocks({**RESULT, "tool_use_id": 5}), "tool_use_id is 5"),
        (
            {
                "messages": [
                    USER,
                    *blocks({**USE, "input": "{}"}, role="assistant")["messages"],
                    USER,
                ]
            },
            "messages[1].content[0].input is '{}'; expected an object",
        ),
        ({"system": 5}, "system: expected"),
        ({"system": [{"type": "text", "text": 5}]}, "system[0].text is 5; expected a text"),
        ({"messages": [{"role": "assistant", "content": "hi"}]}, "no more than the beginning"),
        ({"messages": [{"role": "tool", "content": "hi"}]}, "expected user, assistant or system"),
        ({"system": [{"type": "image"}]}, "system[0] is of type 'image'"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": 10**12}, "max_tokens is 1000000000000"),
        ({"max_tokens": None}, "max_tokens is missing, and has to be there"),
        ({"stop_sequences": [""]}, "stop_sequences holds an empty text"),
        ({"stop_sequences": "x", "stop": "y"}, "both given"),
        ({"temperature": -1}, "temperature is -1"),
        ({"n": 2}, "no field 'n'"),
        ({"max_token": 2}, "did you mean 'max_tokens'"),
        ({"logprobs": 2}, "no field 'logprobs'"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"model": "claude-x"}, "there is no model 'claude-x'"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "which nobody runs"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema is None"),
        ({"tools": [{"name": "f", "input_schema": {"type": "string"}}]}, "schema of an object"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0] is called 'a b'"),
        ({"tools": [{**FLAT[0], "inputschema": {}}]}, "did you mean 'input_schema'"),
        ({"tools": [{**FLAT[0], "defer_loading": True}]}, "not searched for"),
        ({"tools": [{**FLAT[0], "allowed_callers": ["code"]}]}, "allowed_callers is ['code']"),
        ({"tool_choice": {"type": "any"}}, "no tools to call"),
        ({"tools": FLAT, "tool_choice": {"type": "tool"}}, "with the name None"),
        ({"tools": FLAT, "tool_choice": {"type": "auto", "name": "f"}}, "with the name 'f'"),
        ({"tools": FLAT, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice asks for 'x'"),
        (
            {"tools": FLAT, "tool_choice": {"disable_parallel_tool_use": True}},
            "as many as it likes",
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking.budget_tokens is for"),
        ({"thinking": {"type": "enabled", "budget_tokens": 200}}, "max_tokens 200, in which"),
        ({"thinking": {"type": "adaptive", "budget_tokens": 2}}, "it is for 'enabled'"),
        ({"thinking": {"type": "disabled"}, "thinking_budget": 2}, "both given"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type: invalid"),
        ({"output_config": {"effort": "low"}}, "output_config.effort is 'low'"),
        ({"output_config": {"format": FORM}, "output_format": FORM}, "leave one out"),
        ({"output_format": FORM, "json_schema": {}}, "output_format and another schema"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "as they are"),
        ({"context_management": {"edits": 5}}, "context_management.edits: expected"),
        ({"chat_template_kwargs": {"colour": "red"}}, "does not read 'colour'"),
    ],
)
def test_what_cannot_be_done_is_refused(calling: Served, fields: Any, says: str) -> None:
    for stream in (False, True):
        message = refusal(ask(calling, stream=stream, **fields))
        assert says in message and "\n" not in message
    assert calling.server.replies.under_way == 0


def test_a_model_that_does_not_think_is_not_told_to() -> None:
    with served(LLM(fakes.fake_model(template=None))) as client:
        for asking in (ask, count):
            message = refusal(asking(client, thinking={"type": "enabled"}))
            assert message.startswith("thinking asks for thoughts, and this model has none")
            assert asking(client, thinking={"type": "disabled"}).status_code == 200


def test_two_places_may_not_say_whether_to_think(thinking: Served) -> None:
    told = {"chat_template_kwargs": {"thinking": True}, "thinking": {"type": "disabled"}}
    for answer in (ask(thinking, **told), count(thinking, **told)):
        assert refusal(answer).startswith("thinking is told, and so is 'thinking' of the chat")


def test_tokens_are_counted_as_long_as_there_is_a_place(calling: Served) -> None:
    replies = calling.server.replies
    replies.under_way += replies.most
    try:
        answer = count(calling)
    finally:
        replies.under_way -= replies.most
    assert (answer.status_code, count(calling).status_code) == (429, 200)
    assert replies.under_way == 0


def test_tokens_are_counted_where_they_do_not_fit(client: Served) -> None:
    long = [{"role": "user", "content": "x" * 5000}]
    assert count(client, messages=long).json()["input_tokens"] > 5000
    message = refusal(ask(client, messages=long))
    assert message.startswith("prompt is too long: ")  # which clients look for


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"messages": []}, "messages is empty"),
        ({"max_tokens": 5}, "no field 'max_tokens'"),
        ({"temperature": 1}, "no field 'temperature'"),
        ({"model": "other"}, "no model"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0] is called 'a b'"),
    ],
)
def test_what_cannot_be_counted_is_refused(calling: Served, fields: Any, says: str) -> None:
    assert says in refusal(count(calling, **fields))
