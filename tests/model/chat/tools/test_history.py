"""Calls and results of a conversation are what a template wants, and never left out silently."""

from __future__ import annotations

import re
from typing import Any

import pytest

from edgerun.errors import PromptError
from edgerun.model.chat.format import ChatFormat
from edgerun.model.chat.template import ChatTemplate
from tests.model.chat.tools.test_recognition import (
    HERMES,
    KIMI,
    TOOLS,
    VARIABLES,
    WITH_ID,
    called,
    chat_of,
    conversation,
    format_of,
    question,
)
from tests.support import fakes


@pytest.mark.parametrize(
    ("call", "id_"),
    [
        (HERMES, r"call_1"),
        (
            "{% if call.id | length != 9 %}{{ raise_exception('no') }}{% endif %}" + HERMES,
            r"[a-z0-9]{9}",
        ),
        (KIMI, r"functions\.get_weather:0"),
    ],
)
def test_ids_are_of_the_kind_that_a_template_takes(call: str, id_: str) -> None:
    call = call.replace("ARGUMENTS", "{{ call.function.arguments | tojson }}")
    source = chat_of(call, WITH_ID)
    tokenizer, chat_format = format_of(source)
    ids = chat_format.calling.style.ids
    several = {ids.make("get_weather") for _ in range(100)}
    assert len(several) == 100
    own = several.pop()
    for given, expected in (("call_1", id_), (own, re.escape(own))):
        messages = conversation({}, given)
        text = chat_format.encode(messages, tools=TOOLS).text
        assert re.search(rf"It rains.\({expected}\)", text)
        assert text == chat_format.encode(messages, tools=TOOLS).text
        assert called(tokenizer, chat_format, messages) == [("get_weather", {})]


def test_several_calls_keep_their_order_and_their_results() -> None:
    tokenizer, chat_format = format_of(chat_of(KIMI, WITH_ID))
    first, second = conversation({"days": 1}, "a"), conversation({"days": 2}, "b")
    first[1]["tool_calls"] += second[1]["tool_calls"]
    messages = [*first, second[2]]
    assert [each["days"] for _, each in called(tokenizer, chat_format, messages)] == [1, 2]
    text = chat_format.encode(messages).text
    assert re.findall(r"rains.\((.*?)\)", text) == [f"functions.get_weather:{n}" for n in (0, 1)]


def turn(name: str, given: Any, answer: str, **result: Any) -> list[dict[str, Any]]:
    """A call, and what it returned."""
    call = {"type": "function", "function": {"name": name}} | given
    named = {"tool_call_id": given["id"]} if given.get("id") else {}
    return [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": answer, **named, **result},
    ]


@pytest.mark.parametrize(
    ("first", "second", "result", "ids"),
    [
        ({"id": "call_0"}, {"id": "call_0"}, {}, ["get_weather:0", "get_time:1"]),
        ({}, {"id": None}, {}, ["get_weather:0", "get_time:1"]),
        ({"id": "a"}, {"id": ""}, {}, ["get_weather:0", "get_time:1"]),
        ({}, {}, {"tool_call_id": "x"}, ["get_weather:0", "get_time:1"]),
        ({"id": "a"}, {"id": "b"}, {"tool_call_id": "a"}, ["get_weather:0", "get_weather:0"]),
        ({"id": "a"}, {"id": "b"}, {"tool_call_id": "c"}, ["get_weather:0", "unknown:2"]),
        ({"id": "functions.get_time:7"}, {}, {}, ["get_weather:0", "get_time:1"]),
        ({"id": "functions.get_weather:7"}, {}, {}, ["get_weather:7", "get_time:1"]),
    ],
)
def test_a_result_has_the_id_of_its_own_call(
    first: Any, second: Any, result: Any, ids: list[str]
) -> None:
    _, chat_format = format_of(chat_of(KIMI, WITH_ID))
    history = [
        *turn("get_weather", first, "It rains."),
        *turn("get_time", second, "It rains.", **result),
    ]
    text = chat_format.encode([question(), *history]).text
    assert re.findall(r"rains.\(functions\.(.*?)\)", text) == ids
    for name in ("get_weather:", "get_time:1"):
        assert f"<|tool_call_begin|>functions.{name}" in text


def test_results_of_calls_with_the_same_id_keep_their_order() -> None:
    _, chat_format = format_of(chat_of(KIMI, WITH_ID))
    for id_ in ("call_0", None):
        asks, answers = turn("get_weather", {"id": id_}, "It rains.")
        asks["tool_calls"] += turn("get_time", {"id": id_}, "")[0]["tool_calls"]
        text = chat_format.encode([question(), asks, answers, answers]).text
        assert re.findall(r"rains.\(functions\.(.*?)\)", text) == ["get_weather:0", "get_time:1"]
    by_name = {"role": "tool", "content": "It rains.", "name": "get_time"}
    text = chat_format.encode([question(), asks, by_name, answers]).text
    assert re.findall(r"rains.\(functions\.(.*?)\)", text) == ["get_time:1", "get_weather:0"]


@pytest.mark.parametrize(
    ("call", "result", "message"),
    [
        ({"id": 5}, {}, "message 1 has 5 as id; expected text"),
        ({"id": "a"}, {"tool_call_id": ["a"]}, "message 2 has .* as tool_call_id; expected text"),
    ],
)
def test_an_id_that_is_no_text_is_refused(call: Any, result: Any, message: str) -> None:
    _, chat_format = format_of(chat_of(KIMI, WITH_ID))
    with pytest.raises(PromptError, match=message):
        chat_format.encode([question(), *turn("f", call, "x", **result)])


SILENT = "{% for m in messages if m.role != 'tool' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.mark.parametrize(
    ("source", "message", "refusal"),
    [
        *(
            (source, message, refusal)
            for source in (None, SILENT)
            for message, refusal in (
                ({"tool_calls": 5}, "message 1 has 5 as tool_calls; expected a list"),
                ({"tool_calls": 0, "content": "x"}, "message 1 has 0 as tool_calls; expected"),
                ({"tool_calls": [{}]}, "message 1 has {} among its tool_calls"),
                (turn("f", {}, "")[0], "message 1 calls 'f', and .* says nothing of calls"),
                (
                    {"tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
                    "message 1 calls 'f' with '{' as arguments",
                ),
            )
        ),
        (SILENT, {"role": "tool", "content": "x"}, "role 'tool', and .* says nothing of what func"),
    ],
)
def test_what_a_template_would_leave_out_is_refused(
    source: str | None, message: Any, refusal: str
) -> None:
    chat_format = ChatFormat(fakes.byte_tokenizer(), ChatTemplate(source, VARIABLES))
    with pytest.raises(PromptError, match=refusal):
        chat_format.encode([question(), {"role": "assistant", **message}])


ONE_CALL = """{% for m in messages %}{% if (m.tool_calls or []) | length > 1 %}
{{ raise_exception('one call at a time') }}{% endif %}{% endfor %}"""


@pytest.mark.parametrize("name", ["", "meta-llama-Llama-3.2-3B-Instruct"])
def test_templates_that_refuse_several_calls_get_one_at_a_time(
    name: str, request: pytest.FixtureRequest
) -> None:
    source = ONE_CALL + chat_of(
        HERMES.replace("ARGUMENTS", "{{ call.function.arguments | tojson }}")
    )
    if name:
        folder = request.getfixturevalue("shared_data") / "chat_templates"
        source = (folder / f"{name}.jinja").read_text("utf-8")
    _, chat_format = format_of(source)
    assert not chat_format.calling.several
    pairs = [turn(each, {"id": each}, f"{each} said.") for each in ("f", "g", "h")]
    several = {"role": "assistant", "content": "So:", "reasoning_content": "Hm."}
    several["tool_calls"] = [call["tool_calls"][0] for call, _ in pairs]
    results = [pairs[place][1] for place in (1, 0)]  # in any order, and one is missing
    other = {"role": "tool", "tool_call_id": "x", "content": "x said."}
    chat = chat_format.encode([question(), several, *results, other, question()])
    text = chat.disguise.reveal(chat.text)
    places = [text.index(f'"{each}"') for each in ("f", "g", "h")]
    assert places[0] < text.index("f said.") < places[1] < text.index("g said.") < places[2]
    assert places[2] < text.index("x said.") < text.rindex(question()["content"])
    assert text.count("So:") <= 1


def test_templates_that_leave_calls_out_get_one_at_a_time() -> None:
    call = HERMES.replace("ARGUMENTS", "{{ call.function.arguments | tojson }}")
    source = chat_of("{% if loop.first %}" + call + "{% endif %}")
    _, chat_format = format_of(source)
    (first, said), (second, _) = turn("f", {}, "x"), turn("g", {}, "")
    first["tool_calls"] += second["tool_calls"]
    text = chat_format.encode([question(), first, said, said]).text
    assert text.count("<tool_call>") == 2


LOOKS_FOR_CALLS = """{% for m in messages %}{{ m.role }}:
{% if 'tool_calls' in m or m.refusal is defined %}?{% else %}{{ m.content }}{% endif %}
{% endfor %}"""


@pytest.mark.parametrize(
    "name",
    [
        "",
        "meta-llama-Llama-3.2-3B-Instruct",
        "MiniMax-M1",
        "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    ],
)
def test_a_reply_that_calls_nothing_is_shown_whatever_keys_say_so(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Clients send all keys that OpenAI's messages have."""
    source = LOOKS_FOR_CALLS
    if name:
        folder = request.getfixturevalue("shared_data") / "chat_templates"
        source = (folder / f"{name}.jinja").read_text("utf-8")
    _, chat_format = format_of(source)
    reply = {"role": "assistant", "content": "It rains, I hear."}
    expected = chat_format.encode([question(), reply, question()]).text
    assert "It rains, I hear." in expected
    for calls in (None, [], ()):
        given = {**reply, "tool_calls": calls, "refusal": None, "reasoning_content": None}
        assert chat_format.encode([question(), given, question()]).text == expected


def test_results_that_a_template_shows_need_no_calls() -> None:
    chat_format = ChatFormat(fakes.byte_tokenizer(), ChatTemplate(None, VARIABLES))
    result = {"role": "tool", "content": "It rains."}
    assert "It rains." in chat_format.encode([question(), result]).text
    reply = {"role": "assistant", "content": "x", "tool_calls": []}
    assert "It rains." in chat_format.encode([question(), reply, result]).text


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ("f", "message 1 has 'f' as tool_calls; expected a list"),
        (["f"], "has 'f' among its tool_calls"),
        ([{"function": {"name": 1}}], "among its tool_calls; expected"),
        ([{"function": {"name": "f", "arguments": "{"}}], "calls 'f' with '{' as arguments"),
        ([{"function": {"name": "f", "arguments": "[]"}}], "expected a JSON object"),
        ([{"function": {"name": "f", "arguments": 1}}], "expected a JSON object"),
        ([{"function": {"name": "f", "arguments": '{"x": 1e999}'}}], "expected a JSON object"),
        ([{"function": {"name": "f", "arguments": '{"x":' * 60 + "1" + "}" * 60}}], "48 levels"),
    ],
)
def test_calls_of_another_shape_are_refused(calls: Any, message: str) -> None:
    _, chat_format = format_of(chat_of(HERMES.replace("ARGUMENTS", "{}")))
    with pytest.raises(PromptError, match=message):
        chat_format.encode([question(), {"role": "assistant", "tool_calls": calls}])


def test_a_call_of_no_type_is_one_of_a_function() -> None:
    source = chat_of("{{ call.type }}" + HERMES.replace("ARGUMENTS", "{}"))
    _, chat_format = format_of(source)
    messages = conversation({})
    del messages[1]["tool_calls"][0]["type"]
    assert "function<tool_call>" in chat_format.encode(messages).text
