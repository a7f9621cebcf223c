"""What each form writes it reads, whatever names and arguments are and however it comes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.model.chat.conversation import map_texts
from edgerun.model.chat.tools.form import CallForm, Written
from tests.model.chat.tools.replies import (
    FORMS,
    KEYS,
    TEXTS,
    functions_of,
    markers_of,
    read,
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
    known = functions_of(SAMPLE[1:])
    text, calls = read(form, [reply], known)
    assert "look-up" in text
    assert {call[0] for call in calls} <= {"now", "plot.it"}
    if not calls:
        assert text == reply
