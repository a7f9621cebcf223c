"""Chats whose replies call functions or answer as a schema says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgerun.errors import InputError, SamplingError
from edgerun.llm.llm import LLM
from tests.llm.chats.test_tools import CALL, CHOSEN, HERMES, TOOLS, calls_of, hermes_that_says
from tests.model.chat.tools.replies import FORMS, MESSAGES, chat_of, template_of, tool
from tests.support import fakes

pytest.importorskip("llguidance")

ANSWER = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 2, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}
COMPACT = CALL.replace('"city": ', '"city":')
PAIRS = "<arg_key>{{ key }}</arg_key><arg_value>{{ value }}</arg_value>"
ITEMS = f"{{% for key, value in call.function.arguments | items %}}{PAIRS}{{% endfor %}}"
GLM = chat_of("", f"<tool_call>{{{{ call.function.name }}}}{ITEMS}</tool_call>", "")


@pytest.mark.parametrize("name", ["hermes", "mistral_args", "llama"])
def test_a_reply_calls_or_answers(name: str) -> None:
    options: Any = {"tools": TOOLS, "json_schema": ANSWER, "temperature": 3.0, "max_tokens": 200}
    model = fakes.fake_model(template=template_of(FORMS[name]), context=4096)
    with LLM(model) as llm:
        replies = [llm.chat(MESSAGES, seed=seed, **options) for seed in range(8)]
    whole = [reply for reply in replies if reply.finish_reason == "stop"]
    answers = [reply for reply in whole if not reply.tool_calls]
    assert all(json.loads(reply.text)["n"] in range(2, 10) for reply in answers)
    called = [reply for reply in whole if reply.tool_calls]
    assert all(reply.text == "" for reply in called)
    assert {name for reply in called for name, _ in calls_of(reply)} <= {"get_weather", "get_time"}
    assert answers and called


@pytest.mark.parametrize(("said", "calls"), [(COMPACT, 1), ('{"n":3}', 0)])
def test_a_model_chooses_which(said: str, calls: int) -> None:
    with hermes_that_says(said) as llm:
        reply = llm.chat(MESSAGES, tools=TOOLS, json_schema=ANSWER, temperature=0)
        (other,) = llm.chat_many([MESSAGES], tools=TOOLS, json_schema=ANSWER, temperature=0)
    assert reply.text == other.text == ("" if calls else said)
    assert len(reply.tool_calls) == len(other.tool_calls) == calls
    assert reply.ids == list(said.encode())


@pytest.mark.parametrize("name", ["city", "c\\u0069ty"])
def test_arguments_have_no_name_that_is_spelled_with_an_escape(name: str) -> None:
    weather = tool("get_weather", {"city": {"enum": ["Paris"]}})  # and whatever else
    said = COMPACT.replace('"city"', f'"{name}"')
    with hermes_that_says(said, [weather]) as llm:
        options: Any = {"tool_choice": "required", "temperature": 0, "max_tokens": 200}
        reply = llm.chat(MESSAGES, tools=[weather], **options)
    assert (reply.ids == list(said.encode())) == (name == "city")


@pytest.mark.parametrize("choice", ["required", CHOSEN])
def test_a_reply_that_must_call_has_no_answer(choice: Any) -> None:
    with LLM(fakes.fake_model(template=HERMES, context=4096)) as llm:
        options: Any = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 200, "seed": 1}
        reply = llm.chat(MESSAGES, json_schema=ANSWER, temperature=2.0, **options)
        assert reply.ids == llm.chat(MESSAGES, temperature=2.0, **options).ids


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("form", [{"regex": "a+"}, {"grammar": 'start: "a"'}])
def test_other_forms_of_replies_leave_no_room_for_calls(form: Any, choice: str) -> None:
    with (
        LLM(fakes.fake_model(template=HERMES, context=4096)) as llm,
        pytest.raises(SamplingError, match="leave out tools, or say by json_schema, not by regex"),
    ):
        llm.chat(MESSAGES, tools=TOOLS, tool_choice=choice, **form)


@pytest.mark.parametrize(
    ("template", "tools", "values", "message"),
    [
        (GLM, TOOLS, {}, r"beside them, and there is no grammar .* \(glm\): leave out one"),
        (HERMES, TOOLS, {"thinking": True}, "no token tells the end"),
        (
            HERMES,
            [tool("f", {"x": {"not": {}}})],
            {},
            "arguments of 'f' can have no grammar: .*not",
        ),
    ],
)
def test_what_cannot_have_a_grammar_is_refused(
    template: str, tools: Any, values: Any, message: str
) -> None:
    with LLM(fakes.fake_model(template=template, context=4096)) as llm:
        with pytest.raises(InputError, match=message):
            llm.chat(MESSAGES, tools=tools, json_schema=ANSWER, template_values=values)
        assert llm.chat(MESSAGES, tools=tools, template_values=values, max_tokens=3).ids


def test_sessions_call_and_answer() -> None:
    with hermes_that_says(COMPACT) as llm, llm.session(tools=TOOLS) as chat:
        reply = chat.send(MESSAGES[0]["content"], json_schema=ANSWER, temperature=0).result()
    assert len(reply.tool_calls) == 1
