"""``/v1/responses``: the same conversations in items, whole and as events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from edgerun.llm.llm import LLM
from edgerun.server.responses.request import ResponseFields, messages_of
from tests.llm.chats.test_thinking import CHAT, REPLY, that_says
from tests.llm.chats.test_tools import CALL, TOOLS, hermes_that_says
from tests.model.chat.tools.replies import MESSAGES
from tests.server.responses.test_request import thinks
from tests.server.served import Served, served
from tests.support import fakes

QUESTION = MESSAGES[0]["content"]
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
GROUP = {"type": "namespace", "name": "sky", "description": "The sky's.", "tools": FLAT}


@pytest.fixture(scope="module")
def thinking() -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch, served(that_says(REPLY, patch, CHAT)) as client:
        yield client


@pytest.fixture(scope="module")
def calling() -> Iterator[Served]:
    with served(hermes_that_says(f"Let me see.\n{CALL}")) as client:
        yield client


def ask(client: Served, **fields: Any) -> Any:
    return client.post("/v1/responses", json={"input": QUESTION, **fields})


def events_of(text: str) -> list[Any]:
    """The events of a stream, whose names are those of their types."""
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event.get("sequence_number") for event in events] == list(range(len(events)))
    return events


def without_ids(items: Any) -> list[Any]:
    return [{key: item[key] for key in item if key not in ("id", "call_id")} for item in items]


def check(events: Sequence[Any], output: Sequence[Any]) -> None:
    """Makes sure that all of an output comes as events, each item in its place."""
    assert events[-1]["response"]["output"] == output
    for what in ("added", "done"):
        named = [each for each in events if each["type"] == f"response.output_item.{what}"]
        assert [each["item"]["id"] for each in named] == [item["id"] for item in output]
        assert [each["output_index"] for each in named] == list(range(len(output)))
        if what == "done":
            assert [each["item"] for each in named] == list(output)
    for index, item in enumerate(output):
        own = [event for event in events if event.get("item_id") == item["id"]]
        assert {event["output_index"] for event in own} == {index}
        content = item.get("content") or [{"text": item.get("arguments")}]
        assert "".join(event.get("delta", "") for event in own) == content[0]["text"]


def test_a_response_has_thoughts_and_text(thinking: Served) -> None:
    answer = ask(thinking).json()
    assert (answer["object"], answer["status"], answer["error"]) == ("response", "completed", None)
    reasoning, message = answer["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Is it <b>?"}]
    (part,) = message["content"]
    assert (part["type"], part["text"]) == ("output_text", "Hi!\n")
    assert reasoning["id"].startswith("rs_") and message["id"].startswith("msg_")
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]
    again = ask(thinking, input=[{"role": "user", "content": QUESTION}, *answer["output"]])
    assert again.status_code == 200


def test_events_make_up_the_response(thinking: Served, calling: Served) -> None:
    for client, fields in (
        (thinking, {}),
        (calling, {"tools": FLAT}),
        (thinking, {"max_output_tokens": 3}),
    ):
        whole = ask(client, **fields).json()
        events = events_of(ask(client, stream=True, **fields).text)
        kinds = [event["type"] for event in events]
        assert kinds[:2] == ["response.created", "response.in_progress"]
        last = events[-1]["response"]
        assert kinds[-1] == f"response.{whole['status']}"
        assert without_ids(last["output"]) == without_ids(whole["output"])
        assert last["usage"] == {
            **whole["usage"],
            "input_tokens_details": last["usage"]["input_tokens_details"],
        }
        check(events, last["output"])


def test_a_response_that_is_cut_says_so(thinking: Served) -> None:
    answer = ask(thinking, max_output_tokens=4).json()
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["type"] for item in answer["output"]] == ["reasoning"]
    assert answer["output"][0]["status"] == "incomplete"


def test_a_response_says_how_tokens_are_drawn(thinking: Served) -> None:
    recommended = {"temperature": 1.0, "top_p": 1.0, **thinking.server.llm.model.sampling_defaults}
    answer = ask(thinking).json()
    for name in ("temperature", "top_p"):
        assert answer[name] == recommended[name]
    fields = {"temperature": 0.7, "top_p": 0}
    events = events_of(ask(thinking, stream=True, top_logprobs=0, **fields).text)
    for event in (events[0], events[-1]):
        assert {name: event["response"][name] for name in fields} == fields


def test_an_end_for_want_of_room_has_a_reason_of_the_api() -> None:
    with served(LLM(fakes.fake_model(context=40))) as client:
        answer = ask(client, input="Hello").json()
    assert answer["incomplete_details"] == {"reason": "max_output_tokens", "detail": "context"}


def test_functions_are_called_and_answered(calling: Served) -> None:
    answer = ask(calling, tools=FLAT).json()
    message, call = answer["output"]
    assert message["content"][0]["text"] == "Let me see."
    assert (call["type"], call["name"]) == ("function_call", "get_weather")
    assert json.loads(call["arguments"]) == {"city": "Paris"}
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    said = [{"role": "user", "content": QUESTION}, *answer["output"], result]
    assert ask(calling, input=said, tools=FLAT).status_code == 200
    chat = messages_of(ResponseFields(input=said))
    with hermes_that_says("x") as llm:
        reply = llm.chat(chat, tools=TOOLS, max_tokens=3)
        first = llm.chat(MESSAGES, tools=TOOLS, max_tokens=3)
    assert reply.prompt_tokens > first.prompt_tokens
    assert [each["role"] for each in chat] == ["user", "assistant", "tool"]
    assert chat[1]["content"] == "Let me see." and len(chat[1]["tool_calls"]) == 1


def test_functions_of_a_namespace_are_called_by_their_own_names() -> None:
    name = "sky__get_weather"
    read = [
        {"type": "function", "function": {**tool, "name": f"sky__{tool['name']}"}}
        for tool in (each["function"] for each in TOOLS)
    ]
    first = read[0]["function"]
    first["description"] = "\n\n".join(["The sky's.", *filter(None, [first.get("description")])])
    reply = CALL.replace("get_weather", name)
    with hermes_that_says(reply, read) as llm:
        expected = llm.chat(MESSAGES, tools=read, max_tokens=1)
    with served(hermes_that_says(reply, read)) as client:
        answer = ask(client, tools=[GROUP], client_metadata={"turn": {"id": 1}}).json()
        events = events_of(ask(client, tools=[GROUP], stream=True).text)
        (call,) = answer["output"]
        assert answer["usage"]["input_tokens"] == expected.prompt_tokens
        assert (call["name"], call["namespace"]) == ("get_weather", "sky")
        assert without_ids(events[-1]["response"]["output"]) == without_ids([call])
        (message,) = messages_of(ResponseFields(input=[call]))
        assert message["tool_calls"][0]["function"]["name"] == name
        named = {"type": "function", "name": "get_weather", "namespace": "sky"}
        assert ask(client, tools=[GROUP], tool_choice=named).status_code == 200


def test_the_official_client_reads_all_of_it(thinking: Served, calling: Served) -> None:
    openai = pytest.importorskip("openai")
    fields: Any = {"model": "fake", "input": QUESTION}
    with openai.OpenAI(base_url=str(thinking.base_url.join("/v1")), api_key="none") as api:
        answer = api.responses.create(**fields)
        assert answer.output_text == "Hi!\n"
        kinds = [event.type for event in api.responses.create(stream=True, **fields)]
        with api.responses.stream(**fields) as stream:
            text = "".join(
                event.delta for event in stream if event.type == "response.output_text.delta"
            )
            final = stream.get_final_response()
    assert text == final.output_text == answer.output_text
    assert "response.reasoning_text.delta" in kinds and kinds[-1] == "response.completed"
    with openai.OpenAI(base_url=str(calling.base_url.join("/v1")), api_key="none") as api:
        (call,) = [
            item
            for item in api.responses.create(tools=FLAT, **fields).output
            if item.type == "function_call"
        ]
    assert call.name == "get_weather"


def test_a_thought_that_was_cut_off_goes_on_with_the_conversation(thinking: Served) -> None:
    user = {"role": "user", "content": QUESTION}
    cut = ask(thinking, max_output_tokens=4).json()["output"]
    assert messages_of(ResponseFields(input=[user, *cut])) == [user, thinks("Is")]
    assert ask(thinking, input=[user, *cut], max_output_tokens=1).status_code == 200
    assert ask(thinking, input=[user, *cut, user], max_output_tokens=1).status_code == 200


def test_replies_follow_a_schema(thinking: Served) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"]}
    schema |= {"additionalProperties": False}
    form = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    answer = ask(thinking, text=form).json()
    assert json.loads(answer["output"][-1]["content"][0]["text"]) == {"a": 7}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"input": 5}, "input: expected"),
        ({"input": []}, "empty"),
        ({"input": [{"type": "image"}]}, "input[0] is an item of type 'image'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "read text only"),
        ({"input": [{"role": "user", "content": 5}]}, "read text only"),
        ({"input": [{"role": "nobody", "content": "x"}]}, "role 'nobody'"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f"}]}, "arguments is None"),
        ({"input": [5]}, "input[0]"),
        ({"previous_response_id": "resp_1"}, "send the whole conversation"),
        ({"store": True}, "nothing is stored"),
        ({"background": True}, "nothing is stored"),
        ({"max_tool_calls": 4}, "max_tool_calls: it counts tools that a server runs"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"top_logprobs": 1}, "top_logprobs: 1 is not to be had"),
        ({"tools": [{"type": "web_search"}]}, "only functions"),
        ({"tools": [{**GROUP, "tools": [{"type": "custom"}]}]}, "tools[0].tools[0] is of type"),
        ({"tools": [{**GROUP, "tools": {}}]}, "tools[0].tools is {}"),
        ({"tools": [{**GROUP, "name": 5}]}, "tools[0].name is 5"),
        ({"tools": [{**GROUP, "tools": [5]}]}, "tools[0].tools[0] is of type 5"),
        (
            {"input": [{"type": "function_call", "name": "f", "arguments": "", "namespace": 5}]},
            "input[0].namespace is 5",
        ),
        ({"tools": FLAT, "parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"text": {"format": {"type": "json_schema"}}}, "no schema"),
        ({"text": {"verbosity": "low"}}, "verbosity"),
        ({"max_output_tokens": 5, "max_tokens": 6}, "both given"),
        ({"max_output_tokens": 0}, "max_output_tokens is 0"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort is 'high'"),
        ({"model": "other"}, "no model"),
        ({"temprature": 1}, "did you mean 'temperature'"),
    ],
)
def test_what_cannot_be_done_is_refused(calling: Served, fields: Any, says: str) -> None:
    answer = ask(calling, **fields)
    assert answer.status_code in (400, 404)
    assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        (
            {"text": {"format": {"type": "json_schema", "schema": {"type": 5}}}},
            "text.format.schema",
        ),
        ({"text": {"format": {"type": "json_object"}}, "regex": "a"}, "text.format"),
        ({"text": {"format": {"type": "json_object"}}, "json_schema": {}}, "text.format"),
        ({"max_output_tokens": 5, "max_tokens": 6}, "max_output_tokens"),
        ({"tools": [FLAT[0], {"type": "function", "name": "a b"}]}, "tools[1]"),
        ({"tools": [GROUP, {"type": "function", "name": "a b"}]}, "tools[1]"),
        ({"tools": [GROUP, {**GROUP, "name": "a b"}]}, "tools[1].tools[0]"),
        ({"tools": [GROUP, GROUP]}, "tools[1].tools[0]"),
    ],
)
def test_errors_name_the_field_that_was_sent(calling: Served, fields: Any, param: str) -> None:
    error = ask(calling, **fields).json()["error"]
    assert error["param"] == param and error["message"].startswith(f"{param} ")


@pytest.mark.parametrize("items", [None, [], "x" * 9000, [{"role": "nobody", "content": "x"}]])
def test_errors_name_the_input(calling: Served, items: Any) -> None:
    assert ask(calling, input=items).json()["error"]["param"] == "input"


def test_a_response_repeats_the_form_that_was_asked_for(calling: Served) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "additionalProperties": False}
    named = {"type": "json_schema", "name": "x", "schema": schema}
    forms: list[Any] = [{"type": "text"}, {"type": "json_object"}, named]
    forms += [{**named, "strict": False, "description": "d"}]
    for form in forms:
        assert ask(calling, text={"format": form}, max_output_tokens=1).json()["text"] == {
            "format": form
        }
    assert ask(calling, max_output_tokens=1).json()["text"] == {"format": {"type": "text"}}


def test_options_of_streams_are_those_of_chats(calling: Served) -> None:
    for value in (True, False):
        answer = ask(calling, stream=True, stream_options={"include_obfuscation": value})
        assert events_of(answer.text)[-1]["type"] == "response.completed"
    assert "stream_options" in ask(calling, stream_options={"x": 1}).json()["error"]["message"]


def test_without_functions_none_can_be_called(calling: Served) -> None:
    for tools in ({}, {"tools": []}):
        answer = ask(calling, tool_choice="none", max_output_tokens=1, **tools)
        assert answer.status_code == 200
