"""What each form writes it reads, whatever names and arguments are and however it comes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.model.chat.conversation import map_texts
from edgerun.model.chat.tools.form import CallForm, Written
from edgerun.model.chat.tools.functions import Functions
from tests.model.chat.tools.replies import (
    FORMS,
    KEYS,
    TEXTS,
    functions_of,
    markers_of,
    read,
    tool,
    written,
)

QUOTED = [name for name, form in FORMS.items() if form.has_escapes]
RAW = [name for name, form in FORMS.items() if not form.has_escapes]
AMPLE = settings(max_examples=6)
LETTERS = ("qwen_xml", "invoke")  # whose tags are letters, whatever tokens there are
# Stand for what begins markers, in arguments: so only the form's own texts become control tokens.
HIDDEN = str.maketrans("<[", "\ue000\ue001")
SHOWN = str.maketrans("\ue000\ue001", "<[")


def pairs(calls: list[Written]) -> list[tuple[str, Any]]:
    return [(call.name, dict(call.arguments)) for call in calls]


def hide(text: str) -> str:
    return text.translate(HIDDEN)


def tokens_of(form: CallForm) -> list[str]:
    """The form's texts that could each be a token."""
    parts = {*form.openings, *form.markers}
    return sorted(part for part in parts if " " not in part and "=" not in part)


def split(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in zip(places, places[1:], strict=False)]


@pytest.mark.parametrize("name", QUOTED)
@AMPLE
@given(calls=written(), cuts=st.lists(st.integers(0, 10**6), max_size=5))
def test_forms_with_quotes_carry_any_argument(
    name: str, calls: list[Written], cuts: list[int]
) -> None:
    form = FORMS[name]
    pieces = split(form.write(calls), cuts)
    assert read(form, pieces, functions_of(calls)) == ("", pairs(calls))


@pytest.mark.parametrize("name", RAW)
@AMPLE
@given(
    calls=written(TEXTS.filter(lambda text: "<" not in text), KEYS),
    cuts=st.lists(st.integers(0, 10**6), max_size=5),
)
def test_forms_without_quotes_carry_what_holds_no_marker(
    name: str, calls: list[Written], cuts: list[int]
) -> None:
    form = FORMS[name]
    pieces = split(form.write(calls), cuts)
    assert read(form, pieces, functions_of(calls)) == ("", pairs(calls))


@pytest.mark.parametrize("name", [name for name in FORMS if name not in LETTERS])
@AMPLE
@given(calls=written(TEXTS.filter(lambda text: not re.search("[\ue000\ue001]", text)), KEYS))
def test_markers_that_are_tokens_are_no_letters(name: str, calls: list[Written]) -> None:
    """Arguments spell the markers; the model has tokens for them, which are not spelled so."""
    form = FORMS[name]
    markers = markers_of(form, tokens_of(form))
    hidden = [Written(call.name, map_texts(call.arguments, hide, hide)) for call in calls]
    text = markers.coded(form.write(hidden)).translate(SHOWN)
    assert read(form, list(text), functions_of(calls), markers) == ("", pairs(calls))


SAMPLE = [
    Written("look-up", {"city": "São Paulo", "zip": "01000", "days": 3, "all": True}),
    Written("now", {}),
    Written("plot.it", {"points": [[1, 2.5], []], "style": {"color": "r", "dash": None}}),
]


@pytest.mark.parametrize("name", FORMS)
def test_text_before_and_behind_calls_is_text(name: str) -> None:
    form, functions = FORMS[name], functions_of(SAMPLE)
    written_calls = form.write(SAMPLE)
    assert read(form, [written_calls], functions) == ("", pairs(SAMPLE))
    if name == "llama":  # whose calls are the beginning of a reply, or begin with a token
        written_calls = "<|python_tag|>" + written_calls
    reply = f"Let me see…\n\n{written_calls}\n"
    halves = [[reply[:cut], reply[cut:]] for cut in range(len(reply))]
    for pieces in ([reply], list(reply), *halves):
        assert read(form, pieces, functions) == ("Let me see…", pairs(SAMPLE))
    text, calls = read(form, [reply + "Done."], functions)
    assert (text, calls) == ("Let me see…\nDone.", pairs(SAMPLE))


@pytest.mark.parametrize("name", FORMS)
def test_a_reply_that_ends_in_a_call_is_text_from_there_on(name: str) -> None:
    form, functions = FORMS[name], functions_of(SAMPLE)
    whole = form.write(SAMPLE[:1])
    for end in range(len(whole)):
        text, calls = read(form, list(whole[:end]), functions)
        if calls:  # only what closes it is missing
            assert (text, calls) == ("", pairs(SAMPLE[:1]))
            assert '"' not in whole[end:].replace("</tool_call>", "")
        else:
            assert text == whole[:end]


@pytest.mark.parametrize("name", FORMS)
def test_a_function_that_nobody_gave_is_text(name: str) -> None:
    form = FORMS[name]
    reply = f"So: {form.write(SAMPLE)} ok"
    text, calls = read(form, [reply], functions_of(SAMPLE[1:]))
    assert "look-up" in text
    assert {call[0] for call in calls} <= {"now", "plot.it"}
    if not calls:
        assert text == reply


CITY = {"city": "São Paulo"}
DEEPSEEK = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```"
    "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>look-up\n```json\n"
    '{"city": "São Paulo"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
DSML = (
    '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="look-up">\n'
    '<｜DSML｜parameter name="x" string="true">42</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="y" string="false">42</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)
SEED = (
    "<seed:tool_call>\n<function=look-up>\n<parameter=city>\nSão Paulo\n</parameter>\n"
    "<parameter=all>['a', True]</parameter>\n</function>\n</seed:tool_call>"
)
HARMONY = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>"


OTHERS = Functions([tool("look-up", {"city": {"type": "string"}}), tool("now")])


NOW = ("now", {})
WRITTEN = [
    ("deepseek", DEEPSEEK, [NOW, ("look-up", CITY)]),
    (
        "gemma4",
        '<|tool_call>call:look-up{city:<|"|>a{"b<|"|>,x:[none,{}]}<tool_call|>',
        [("look-up", {"city": 'a{"b', "x": [None, {}]})],
    ),
    ("gpt_oss", HARMONY, [NOW]),
    ("gpt_oss", " to=functions.now<|channel|>commentary json<|message|>{}", [NOW]),
    ("gpt_oss", f"<|start|>assistant{HARMONY}", [NOW]),
    ("granite", '<|tool_call|>[{"name": "now", "arguments": {}}]<|/tool_call|>', [NOW]),
    ("hermes", '<tool_call>[{"name": "now"}, {"name": "now"}]</tool_call>', [NOW] * 2),
    ("invoke", DSML, [("look-up", {"x": "42", "y": 42})]),
    (
        "lfm2",
        "<|tool_call_start|>[look-up(city='it\\'s', all=True)]<|tool_call_end|>",
        [("look-up", {"city": "it's", "all": True})],
    ),
    ("llama", '{"type": "function", "name": "now", "parameters": {}}', [NOW]),
    ("llama", '\n{"name": "now", "parameters": {}}; {"name": "now"}', [NOW] * 2),
    ("mistral_args", "[TOOL_CALLS]now[CALL_ID]a1b2c3d4e[ARGS]{}", [NOW]),
    (
        "olmo3",
        '<function_calls>\nnow()\nlook-up(city="a(b")\n</function_calls>',
        [NOW, ("look-up", {"city": "a(b"})],
    ),
    ("qwen_xml", "<function=now>\n</function>", [NOW]),
    (
        "qwen_xml",
        "<function=look-up><parameter=city>a</parameter>b</parameter></function>",
        [("look-up", {"city": "a</parameter>b"})],
    ),
    ("qwen_xml", SEED, [("look-up", {"city": "\nSão Paulo\n", "all": "['a', True]"})]),
    ("tool_calls", '<tool_calls>\n{"name": "now"}\n{"name": "now"}\n</tool_calls>', [NOW] * 2),
]


@pytest.mark.parametrize(("name", "reply", "calls"), WRITTEN)
def test_what_models_write_otherwise_is_read_too(
    name: str, reply: str, calls: list[tuple[str, Any]]
) -> None:
    for pieces in ([reply], list(reply)):
        assert read(FORMS[name], pieces, OTHERS) == ("", calls)


@pytest.mark.parametrize("name", ["mistral", "hermes", "kimi", "lfm2"])
def test_of_calls_in_one_list_all_are_text_if_one_is(name: str) -> None:
    form = FORMS[name]
    reply = (
        form.write(SAMPLE) if name != "hermes" else '<tool_call>[{"name": "now"}, {}]</tool_call>'
    )
    assert read(form, [reply], functions_of(SAMPLE[:2])) == (reply, [])


def test_values_without_quotes_have_no_more_levels_than_json() -> None:
    for depth, is_call in ((40, True), (60, False)):
        value = "[" * depth + "]" * depth
        reply = f"<tool_call>now<arg_key>x</arg_key><arg_value>{value}</arg_value></tool_call>"
        text, calls = read(FORMS["glm"], [reply], OTHERS)
        assert (text == "", bool(calls)) == (is_call, is_call)
