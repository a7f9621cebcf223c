"""Chats whose replies call functions: streamed, cut, forced, refused, and gone on with."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import edgerun
from edgerun.engine.sampling.logit_bias import LogitBias
from edgerun.engine.sampling.temperature import Temperature
from edgerun.engine.sequence import Token
from edgerun.errors import (
    InputError,
    MissingDependencyError,
    PromptError,
    SamplingError,
)
from edgerun.llm.llm import LLM
from edgerun.llm.replies.completion import Writer
from edgerun.model.chat.reply import ReplyReader
from edgerun.model.chat.tools import grammar
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.reader import CallReader
from tests.model.chat.test_disguise import tokenizer_for
from tests.model.chat.tools.replies import (
    FORMS,
    MESSAGES,
    chat_of,
    markers_of,
    model_that_says,
    template_of,
    tool,
)
from tests.support import fakes

WEATHER = tool(
    "get_weather",
    {
        "city": {"type": "string", "minLength": 1, "maxLength": 6},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
)
WEATHER["function"]["parameters"] |= {"required": ["city"], "additionalProperties": False}
TIME = tool("get_time")
TIME["function"]["parameters"]["additionalProperties"] = False
TOOLS = [WEATHER, TIME]
CHOSEN = {"type": "function", "function": {"name": "get_weather"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
HERMES = template_of(FORMS["hermes"])


def hermes_that_says(
    reply: str, tools: Sequence[Any] | None = TOOLS, values: Mapping[str, Any] | None = None
) -> LLM:
    return model_that_says(reply, HERMES, tools, values)


def calls_of(completion: edgerun.Completion) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in completion.tool_calls]


def test_a_reply_has_text_and_calls() -> None:
    reply = f"Let me see.\n{CALL}\n{CALL.replace('weather', 'time').replace('Paris', '<é>')}\n"
    with hermes_that_says(reply) as llm:
        stream = llm.stream_chat(MESSAGES, tools=TOOLS)
        pieces = list(stream)
    assert pieces == [*"Let", " m", "e", " s", *"ee."]  # a space may belong to a call
    completion = stream.completion
    assert (completion.text, completion.finish_reason) == ("Let me see.", "stop")
    assert calls_of(completion) == [
        ("get_weather", {"city": "Paris"}),
        ("get_time", {"city": "<é>"}),
    ]
    first, second = completion.tool_calls
    assert first.arguments == '{"city": "Paris"}'
    assert first.id.startswith("call_") and first.id != second.id
    assert completion.ids == list(reply.encode())
    with pytest.raises(AttributeError):
        first.name = "x"  # type: ignore[misc]


@pytest.mark.parametrize("options", [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_tools_nothing_is_a_call(options: Any) -> None:
    with hermes_that_says(CALL, tools=None) as llm:
        completion = llm.chat(MESSAGES, **options)
    assert (completion.text, completion.tool_calls) == (CALL, [])


def test_a_call_that_is_cut_off_is_text() -> None:
    with hermes_that_says(f"Well. {CALL}") as llm:
        for size in range(7, 7 + len(CALL), 6):
            stream = llm.stream_chat(MESSAGES, tools=TOOLS, max_tokens=size)
            text = "".join(stream)
            completion = stream.completion
            assert completion.finish_reason == "length"
            if completion.tool_calls:  # only what closes it is missing
                assert text == "Well." and size > len(CALL) - len("\n</tool_call>")
            else:
                assert text == completion.text == f"Well. {CALL}"[:size]


def test_stop_texts_are_looked_for_in_the_text_alone() -> None:
    with hermes_that_says(f"So: {CALL} Well, is it? {CALL}") as llm:
        completion = llm.chat(MESSAGES, tools=TOOLS, stop=["\n", "is it"])
    assert completion.text == "So: Well, "
    assert len(completion.tool_calls) == 1
    assert completion.finish_reason == "stop"


def test_calls_behind_a_stop_text_do_not_count() -> None:
    """Wherever tokens end: here a token is a whole reply."""

    class Decoder:
        def push(self, id_: int) -> str:
            return f"a stop {CALL}"

    form = FORMS["hermes"]
    calls = CallReader(form, Functions(TOOLS), markers_of(form), lambda name: "")
    reader = ReplyReader(markers_of(form), None, calls)
    writer = Writer(edgerun.Completion(), Decoder(), ("stop",), reader)
    assert writer.push(Token(0)) == ("a ", "")
    assert (writer.completion.finish_reason, writer.completion.tool_calls) == ("stop", [])


def test_conversations_of_several_callers_go_together() -> None:
    with hermes_that_says(CALL) as llm:
        replies = llm.chat_many([MESSAGES, MESSAGES], tools=TOOLS)
    assert [calls_of(reply) for reply in replies] == [[("get_weather", {"city": "Paris"})]] * 2
    assert len({reply.tool_calls[0].id for reply in replies}) == 2


def test_a_conversation_goes_on_with_what_a_function_said() -> None:
    with hermes_that_says(f"Let me see.\n{CALL}") as llm:
        reply = llm.chat(MESSAGES, tools=TOOLS)
        (call,) = reply.tool_calls
        function = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
        assert reply.message == {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [{"id": call.id, "type": "function", "function": function}],
        }
        result = {"role": "tool", "tool_call_id": call.id, "content": "It rains."}
        messages = [*MESSAGES, reply.message, result]
        (chat,) = llm._format.encode_many([messages], tools=TOOLS)
        prompt = llm.tokenizer.decode(chat.ids)
        assert f"assistant\nLet me see.{CALL}\ntool\nIt rains.\nassistant\n" in prompt
        answer = llm.chat(messages, tools=TOOLS, max_tokens=5)
        assert answer.message == {"role": "assistant", "content": answer.text}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tools": "f"}, InputError, "tools is 'f'; expected a list"),
        (
            {"tools": TOOLS, "tool_choice": "any"},
            InputError,
            "tool_choice is 'any'; expected 'auto'",
        ),
        ({"tools": TOOLS, "tool_choice": None}, InputError, "tool_choice is None; expected 'auto'"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, InputError, "expected 'auto'"),
        ({"tool_choice": "required"}, InputError, "'required', and there are no tools to call"),
        ({"tools": TOOLS, "regex": "a"}, SamplingError, "leave out tools, or say by json_schema"),
        ({"template_values": {"tools": 1}}, InputError, "'tools', which is made of the conv"),
        ({"template_values": {"effort": 1}}, InputError, "does not read 'effort'"),
        ({"template_values": {"bos_token": ""}}, InputError, "'bos_token', which the model's tok"),
        ({"template_values": 1}, InputError, "template_values is 1; expected names and values"),
        ({"tools": TOOLS, "temperature": -1}, SamplingError, "temperature is -1"),
    ],
)
def test_what_cannot_be_is_refused(options: Any, error: type[Exception], message: str) -> None:
    with LLM(fakes.fake_model(template=HERMES)) as llm:
        for call in (
            llm.chat,
            llm.stream_chat,
            lambda *given, **named: llm.chat_many([*given], **named),
        ):
            with pytest.raises(error, match=message):
                call(MESSAGES, **options)  # type: ignore[operator]


def test_a_function_that_is_none_of_the_tools_is_not_chosen() -> None:
    choice = {"type": "function", "function": {"name": "get_wether"}}
    with (
        LLM(fakes.fake_model(template=HERMES)) as llm,
        pytest.raises(InputError, match="none of the tools: did you mean 'get_weather'"),
    ):
        llm.chat(MESSAGES, tools=TOOLS, tool_choice=choice)


@pytest.mark.parametrize("template", [None, fakes.CHATML])
def test_a_model_without_tools_says_so(template: str | None) -> None:
    with LLM(fakes.fake_model(template=template)) as llm:
        with pytest.raises(InputError, match="template says nothing of tools.*leave tools out"):
            llm.stream_chat(MESSAGES, tools=TOOLS)
        assert llm.chat(MESSAGES, tools=TOOLS, tool_choice="none", max_tokens=3).ids


def test_the_template_is_told_values_of_one_call() -> None:
    template = fakes.CHATML + "{{ effort }}{{ context }}"
    with LLM(fakes.fake_model(template=template)) as llm:
        llm._format.template.variables["effort"] = "some"  # as ``load`` does
        lengths = [
            llm.chat(MESSAGES, template_values=values, max_tokens=1).prompt_tokens
            for values in (None, {}, {"effort": "none at all"}, {"context": "x"}, None)
        ]
        assert [length - lengths[0] for length in lengths] == [0, 0, 7, 1, 0]
        (both, _) = llm.chat_many(
            [MESSAGES, MESSAGES], template_values={"effort": ""}, max_tokens=1
        )
        assert both.prompt_tokens == lengths[0] - 4
        with pytest.raises(PromptError, match="does not fit|tokens"):
            llm.chat(MESSAGES, template_values={"effort": "x" * 600}, max_tokens=1)


QUICK = ("hermes", "mistral", "mistral_args")
FORCED = [
    pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
    for name, form in FORMS.items()
    if form.shape
]


@pytest.mark.parametrize("name", FORCED)
def test_a_call_can_be_forced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Markers are hidden control tokens here, or letters; arguments are as the schema says."""
    pytest.importorskip("llguidance")
    template = template_of(FORMS[name])
    for tokenizer in (tokenizer_for(template), fakes.byte_tokenizer()):
        monkeypatch.setattr(fakes, "VOCAB", tokenizer.vocab_size)
        model = fakes.fake_model(template=template, tokenizer=tokenizer, context=4096)
        with LLM(model) as llm:
            options: Any = {"tools": TOOLS, "temperature": 2.0, "seed": 5, "max_tokens": 200}
            one = llm.chat(MESSAGES, tool_choice=CHOSEN, **options)
            some = llm.chat(MESSAGES, tool_choice="required", **options)
        assert (one.text, one.finish_reason) == ("", "stop")
        ((called, arguments),) = calls_of(one)
        assert called == "get_weather"
        assert {"city"} <= set(arguments) <= {"city", "days"}
        assert 0 < len(arguments["city"]) <= 6 and arguments.get("days", 0) in range(10)
        if some.finish_reason == "stop":  # one that makes many calls may come to no end
            assert some.tool_calls and some.text == ""
        assert {name for name, _ in calls_of(some)} <= {"get_weather", "get_time"}


@pytest.mark.parametrize("refusal", ["", "{{ raise_exception('one at a time') }}"])
def test_no_more_calls_are_forced_than_a_message_may_have(
    refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llguidance")
    grammars: list[bool] = []
    write = grammar.grammar_of_calls

    def written(*given: Any, several: bool) -> str:
        grammars.append(several)
        return write(*given, several=several)

    monkeypatch.setattr(grammar, "grammar_of_calls", written)
    several = "{% for m in messages if m.tool_calls and m.tool_calls | length > 1 %}"
    template = several + refusal + "{% endfor %}" + HERMES
    with LLM(fakes.fake_model(template=template, context=4096)) as llm:
        llm.chat(MESSAGES, tools=TOOLS, tool_choice="required", max_tokens=1)
    assert grammars == [not refusal]


def test_functions_that_are_too_much_together_are_refused() -> None:
    pytest.importorskip("llguidance")
    long = {"x": {"type": "string", "description": "x" * 400_000}}
    template = HERMES.replace("tools | tojson", "tools[0].function.name")
    with (
        LLM(fakes.fake_model(template=template)) as llm,
        pytest.raises(SamplingError, match="calls of f, g, h can have no grammar: grammar has"),
    ):
        llm.chat(MESSAGES, tools=[tool(name, long) for name in "fgh"], tool_choice="required")


def test_which_of_many_functions_cannot_be_called_is_not_looked_for_all_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("llguidance")
    tried: list[str] = []

    def slowly(name: str, text: str) -> str:
        tried.append(text)
        time.sleep(0.05)
        return ""

    monkeypatch.setattr("edgerun.engine.constraints.trial.grammar_of", slowly)
    monkeypatch.setattr("edgerun.llm.tools.WHY_NOT_S", 0.2)
    long = {"x": {"type": "string", "description": "x" * 20_000}}
    template = HERMES.replace("tools | tojson", "tools[0].function.name")
    message = (
        "calls of f0, f1, f2, f3, f4, f5, f6, f7 and 52 others can have no grammar: grammar has"
    )
    with (
        LLM(fakes.fake_model(template=template)) as llm,
        pytest.raises(SamplingError, match=message),
    ):
        tools = [tool(f"f{number}", long) for number in range(60)]
        llm.chat(MESSAGES, tools=tools, tool_choice="required")
    assert 0 < len(tried) < 10


def test_a_forced_call_without_a_schema_has_an_object() -> None:
    pytest.importorskip("llguidance")
    bare = [{"type": "function", "function": {"name": "f"}}]
    with LLM(fakes.fake_model(template=HERMES, context=4096)) as llm:
        for seed in range(5):
            options: Any = {"temperature": 3, "seed": seed, "max_tokens": 60}
            reply = llm.chat(MESSAGES, tools=bare, tool_choice="required", **options)
            assert reply.tool_calls or '{"name": "f", "arguments": {' in reply.text


def test_forced_calls_are_chosen_by_processors_of_a_callers_own() -> None:
    pytest.importorskip("llguidance")
    with LLM(fakes.fake_model(template=HERMES, context=4096)) as llm:
        given: Any = {"tools": TOOLS, "tool_choice": CHOSEN, "stop": "\n", "max_tokens": 200}
        plain = llm.chat(MESSAGES, temperature=0, **given)
        ((_, first),) = calls_of(plain)
        banned = {ord(first["city"][0]): -100.0}
        processors = [LogitBias(logit_bias=banned), Temperature(temperature=0)]
        ((_, second),) = calls_of(llm.chat(MESSAGES, processors=processors, **given))
    assert second["city"][0] != first["city"][0]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_call_that_cannot_be_forced_is_refused(
    choice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llguidance")
    odd = [tool("f", {"x": {"not": {}}})]
    pairs = "<arg_key>{{ key }}</arg_key><arg_value>{{ value }}</arg_value>"
    items = f"{{% for key, value in call.function.arguments | items %}}{pairs}{{% endfor %}}"
    glm = chat_of("", f"<tool_call>{{{{ call.function.name }}}}{items}</tool_call>", "")
    for template, values, message in (
        (HERMES, {}, "arguments of 'f' can have no grammar: .*not"),
        (glm, {}, r"no grammar yet for the form in which this model writes arguments \(glm\)"),
        (HERMES, {"thinking": True}, "no token tells the end: turn that off with template_values"),
    ):
        with LLM(fakes.fake_model(template=template, context=4096)) as llm:
            tools = [tool("f")] if values or template == glm else odd
            with pytest.raises(InputError, match=message):
                llm.chat(MESSAGES, tools=tools, tool_choice=choice, template_values=values)
            assert llm.chat(MESSAGES, tools=tools, template_values=values, max_tokens=3).ids
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with (
        LLM(fakes.fake_model(template=HERMES)) as llm,
        pytest.raises(MissingDependencyError, match="tool_choice needs llguidance"),
    ):
        llm.chat(MESSAGES, tools=[tool("f")], tool_choice=choice)


def test_a_call_is_not_forced_with_another_number_than_the_one_that_is_asked_for() -> None:
    pytest.importorskip("llguidance")
    tools = [tool("g"), tool("f", {"x": {"const": 2**60 + 1}})]
    with (
        LLM(fakes.fake_model(template=HERMES)) as llm,
        pytest.raises(
            InputError, match="arguments of 'f' can have no grammar: .*const has 1152921"
        ),
    ):
        llm.chat(MESSAGES, tools=tools, tool_choice="required")


def test_a_reply_that_goes_on_with_a_thought_calls_behind_it() -> None:
    values = {"thinking": True}
    with hermes_that_says(f"I may {CALL}</think>{CALL}", values=values) as llm:
        completion = llm.chat(MESSAGES, tools=TOOLS, template_values=values)
    assert (completion.thinking, completion.text) == (f"I may {CALL}", "")
    assert len(completion.tool_calls) == 1
