"""Text streams past the reader, and nothing of a reply is lost, garbled or slow to read."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.model.chat.tools.form import Written
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.reader import CallReader
from tests.model.chat.tools.replies import FORMS, MARKERS, PIECES, markers_of, read, tool

FUNCTIONS = Functions([tool("f", {"x": {"type": "string"}}), tool("g")])
CALL = [Written("f", {"x": "a"})]
HERMES = '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'


def pieces_of(*texts: str) -> list[str]:
    """What a reader of Hermes' form says at once to each text."""
    reader = CallReader(FORMS["hermes"], FUNCTIONS, markers_of(FORMS["hermes"]), lambda name: "")
    said = ["".join(map(str, reader.push(text))) for text in texts]
    return [*said, "".join(map(str, reader.finish()))]


def test_text_is_held_back_only_while_it_may_begin_a_call() -> None:
    assert pieces_of("a", "b ", "c") == ["a", "b", " c", ""]
    assert pieces_of("<", "b>") == ["", "<b>", ""]
    assert pieces_of("1 <tool", "_", "box>") == ["1", "", " <tool_box>", ""]
    assert pieces_of("x\n", "<tool_") == ["x", "", "\n<tool_"]
    assert pieces_of("x" + " " * 100) == ["x" + " " * 36, " " * 64]


@pytest.mark.parametrize(
    "start",
    [
        "<tool_call>" + "{" * 60,
        '<tool_call>{"name": "f"} and',
        "<tool_call>\n\nno",
        "<tool_call>{}]",
    ],
)
def test_what_can_be_no_call_is_text_before_the_reply_ends(start: str) -> None:
    assert pieces_of(f"{start} x")[0] == f"{start} x"


def test_a_name_has_an_end() -> None:
    form = FORMS["qwen_xml"]
    reader = CallReader(form, FUNCTIONS, markers_of(form), lambda name: "")
    reply = "<function=" + "f" * 300
    assert "".join(map(str, reader.push(reply))) == reply


@pytest.mark.parametrize(("length", "is_call"), [(256, True), (257, False), (300, False)])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_name_has_the_same_end_however_it_comes(length: int, is_call: bool, size: int) -> None:
    form = FORMS["mistral_args"]
    markers = markers_of(form)
    reader = CallReader(form, FUNCTIONS, markers, lambda name: "")
    reply = markers.coded(f'[TOOL_CALLS]f[CALL_ID]{"c" * length}[ARGS]{{"x": "a"}}')
    pieces = [reply[at : at + size] for at in range(0, len(reply), size)]
    events = [event for piece in pieces for event in reader.push(piece)] + list(reader.finish())
    assert any(not isinstance(event, str) for event in events) == is_call


def test_spaces_at_the_end_are_text_unless_a_call_is_before_them() -> None:
    assert read(FORMS["hermes"], [f"{HERMES % '{}'}\n"], FUNCTIONS)[0] == ""
    assert read(FORMS["hermes"], [f"{HERMES % '{}'}\nx\n"], FUNCTIONS)[0] == "\nx\n"
    assert read(FORMS["hermes"], ["x\n"], FUNCTIONS)[0] == "x\n"


def test_calls_come_between_texts_in_their_order() -> None:
    form, reply = FORMS["hermes"], f"a {HERMES % '{}'} b {HERMES % '{}'}"
    reader = CallReader(form, FUNCTIONS, markers_of(form), lambda name: "id")
    events = [*reader.push(reply), *reader.finish()]
    assert events == ["a", ("id", "f", "{}"), " b", ("id", "f", "{}")]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"x": 1.0, "y": "\u00e9\\u00e9"}', '{"x": 1.0, "y": "éé"}'),
        ('{ "x" :\t[1,2 , {}] }', '{"x": [1, 2, {}]}'),
        ('{"x": 1, "x": 2}', '{"x": 2}'),
        ('{"x": "line\nbreak"}', '{"x": "line\\nbreak"}'),
        ('{"x": "\\ud83d\\ude00"}', '{"x": "😀"}'),
        ('{"x": 123456789012345678901234567890}', '{"x": 123456789012345678901234567890}'),
        (f'{{"x": {"[" * 40}{"]" * 40}}}', f'{{"x": {"[" * 40}{"]" * 40}}}'),
    ],
)
def test_arguments_are_normalised(written: str, arguments: str) -> None:
    form = FORMS["hermes"]
    reader = CallReader(form, FUNCTIONS, markers_of(form), lambda name: f"{name}1")
    assert [*reader.push(HERMES % written), *reader.finish()] == [("f1", "f", arguments)]


@pytest.mark.parametrize(
    "arguments",
    [
        "[]",
        '"{}"',
        "null",
        "{",
        '{"x"}',
        '{"x": NaN}',
        '{"x": 1e999}',
        '{"x": "\\ud800"}',
        '{"x": ' + "1" * 5000 + "}",
        '{"x": ' + "[" * 60 + "]" * 60 + "}",
        '{"x": 1}}',
        '{"x": 1} and more',
    ],
)
def test_what_is_no_call_is_text_whole(arguments: str) -> None:
    reply = f"Well: {HERMES % arguments}\nand so on"
    for pieces in ([reply], list(reply)):
        assert read(FORMS["hermes"], pieces, FUNCTIONS) == (reply, [])


def test_what_follows_a_broken_call_is_read() -> None:
    text, calls = read(FORMS["hermes"], list(f"<tool_call>oops {HERMES % '{}'}"), FUNCTIONS)
    assert (text, calls) == ("<tool_call>oops", [("f", {})])


def test_arguments_may_be_missing() -> None:
    assert read(FORMS["hermes"], ['<tool_call>{"name": "g"}'], FUNCTIONS) == ("", [("g", {})])


@pytest.mark.parametrize("reply", ['{"city": "Paris"}', '{"name": "x"}', "{}", "[1]", "{", "{ x"])
def test_json_that_calls_nothing_is_a_reply(reply: str) -> None:
    assert read(FORMS["llama"], list(reply), FUNCTIONS) == (reply, [])


def test_json_that_begins_otherwise_than_a_call_does_not_wait_for_its_end() -> None:
    form = FORMS["llama"]
    reader = CallReader(form, FUNCTIONS, markers_of(form), lambda name: "")
    start = '{"city": "Paris", "country'
    assert "".join(map(str, reader.push(start))) == start


def test_a_marker_that_is_a_token_is_shown_where_it_is_text() -> None:
    form = FORMS["mistral"]
    markers = markers_of(form, ["[TOOL_CALLS]"])
    (token,) = markers.characters.values()
    assert read(form, [f"a {token}[oops"], FUNCTIONS, markers) == ("a [TOOL_CALLS][oops", [])
    call = '[{"name": "f", "arguments": {"x": "' + token + '"}}]'
    assert read(form, [token + call], FUNCTIONS, markers) == ("", [("f", {"x": "[TOOL_CALLS]"})])
    form, markers = FORMS["granite"], markers_of(FORMS["granite"], ["<|/tool_call|>", "<think>"])
    closing, thought = markers.characters.values()  # as of all hidden tokens, nothing is shown
    reply = f"{thought}Hm.</think>Done.{closing}"
    assert read(form, [reply], FUNCTIONS, markers) == ("Hm.</think>Done.", [])


def test_letters_that_spell_a_token_call_nothing() -> None:
    """As a user wrote them, and the model repeats them."""
    form, markers = FORMS["mistral"], markers_of(FORMS["mistral"], ["[TOOL_CALLS]"])
    letters = form.write(CALL)
    assert read(form, [letters], FUNCTIONS, markers) == (letters, [])


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=8)
@given(st.data())
def test_the_same_comes_of_it_however_a_reply_is_cut(name: str, data: st.DataObject) -> None:
    form = FORMS[name]
    whole = [form.write(CALL), form.write([*CALL, Written("g", {})])]
    own = [*form.openings, *form.markers, *whole, whole[0][: len(whole[0]) // 2]]
    pieces = st.one_of(st.sampled_from(own), st.sampled_from(PIECES), st.text(max_size=3))
    reply = "".join(data.draw(st.lists(pieces, max_size=8)))
    at_once = read(form, [reply], FUNCTIONS)
    size = data.draw(st.integers(1, 7))
    parts = [reply[start : start + size] for start in range(0, len(reply), size)]
    assert read(form, list(reply), FUNCTIONS) == at_once
    assert read(form, parts, FUNCTIONS) == at_once
    if not at_once[1]:
        assert at_once[0] == reply


def hostile(name: str, size: int) -> dict[str, str]:
    form = FORMS[name]
    opening = form.openings[0]
    start = f'{opening}{{"name": "f", "arguments": {{"x": '
    replies = {
        "braces": start + "{" * size,
        "openings": (opening + "x") * (size // (len(opening) + 1)),
        "unended strings": f'{opening}{{"a": "' * (size // (len(opening) + 7)),
        "spaces": " " * size,
        "spaces in a call": opening + " " * size,
        "a long string": start + '"' + 'x\\"' * (size // 3),
        "a long list": start + "[[]" + ",[]" * (size // 3),
        "many calls": form.write(CALL) * (size // len(form.write(CALL))),
    }
    for marker in form.markers[:4]:
        replies[marker] = opening + "f" + marker + "f" + marker * (size // len(marker))
    return replies


def seconds(name: str, reply: str, step: int) -> float:
    start = time.process_time()
    text, calls = read(
        FORMS[name], [reply[i : i + step] for i in range(0, len(reply), step)], FUNCTIONS
    )
    assert calls or text == reply
    return time.process_time() - start


@pytest.mark.parametrize("name", ["gemma4", "hermes", "qwen_xml"])
def test_hostile_replies_are_text(name: str) -> None:
    for reply in hostile(name, 2000).values():
        assert seconds(name, reply, 1) < 2
        assert seconds(name, reply, len(reply)) < 2


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_a_megabyte_of_anything_is_read_in_seconds(name: str) -> None:
    for reply in hostile(name, 1 << 20).values():
        assert seconds(name, reply, 7) < 10
        assert seconds(name, reply, len(reply)) < 10


def test_a_reply_of_markers_alone_is_text() -> None:
    for form in FORMS.values():
        for marker in MARKERS:
            assert read(form, [marker], FUNCTIONS) == (marker, [])


def test_calls_are_numbered_as_they_come() -> None:
    ids: Any = iter(range(10))
    form = FORMS["mistral"]
    reader = CallReader(form, FUNCTIONS, markers_of(form), lambda name: f"{name}{next(ids)}")
    events = [*reader.push(form.write([*CALL, Written("g", {})])), *reader.finish()]
    assert [event.id for event in events if not isinstance(event, str)] == ["f0", "g1"]
    assert json.loads(events[0].arguments) == {"x": "a"}  # type: ignore[union-attr]
