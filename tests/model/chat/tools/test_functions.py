"""Descriptions of functions are checked, and values without quotes get the types they say."""

from __future__ import annotations

from typing import Any

import pytest

from edgerun.errors import InputError
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.literals import read_expressions, read_literal
from edgerun.model.chat.tools.values import UnreadableError
from tests.model.chat.tools.replies import tool


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, " 42 ", " 42 "),
        ({"type": "string"}, "true", "true"),
        ({"type": "integer"}, " 42\n", 42),
        ({"type": "integer"}, "many", "many"),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "number"}, "7", 7),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "null"}, "None", None),
        ({"type": "array"}, '["a", 1]', ["a", 1]),
        ({"type": "array"}, "['a', True, None]", ["a", True, None]),
        ({"type": "object"}, '{"a": {"b": []}}', {"a": {"b": []}}),
        ({"type": "object"}, "{'a': (1, 2)}", {"a": [1, 2]}),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "42", "42"),
        ({"type": ["string", "integer"]}, "42", 42),
        ({"type": ["string", "number"]}, "42", 42),
        ({"type": ["string", "integer"]}, "4.5", "4.5"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": ["auto", 1]}, "1", 1),
        ({"const": 3}, "3", 3),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "4.5", 4.5),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "x", "x"),
        ({"description": "says nothing"}, "42", "42"),
        ({"description": "says nothing"}, '{"a": 1}', {"a": 1}),
        ({"$ref": "#/$defs/x"}, "02139", "02139"),
        (True, "[1]", [1]),
    ],
)
def test_values_are_of_the_types_that_schemas_say(schema: Any, text: str, value: Any) -> None:
    functions = Functions([tool("f", {"x": schema})])
    read = functions.value("f", "x", text)
    assert (type(read), read) == (type(value), value)


DEFINITIONS = {
    "n": {"type": "integer"},
    "m": {"$ref": "#/$defs/n"},
    "a/b~%": {"anyOf": [{"type": "boolean"}, {"type": "number"}]},
    "loop": {"anyOf": [{"$ref": "#/$defs/pool"}, {"type": "integer"}]},
    "pool": {"$ref": "#/$defs/loop"},
    "wide": {"anyOf": [{"$ref": "#/$defs/wide"}, {"$ref": "#/$defs/wider"}] * 200},
    "wider": {"oneOf": [{"$ref": "#/$defs/wide"}, {"enum": [1]}] * 200},
}


@pytest.mark.parametrize(
    "reference",
    [
        "#/$defs/n",
        "#/$defs/m",
        "#/$defs/a~1b~0%25",
        "#/$defs/a~1b~0%25/anyOf/1",
        "#/properties/n",
        "#/%24defs/loop",
        "#/$defs/pool",
        "#/$defs/wide",
    ],
)
def test_types_are_those_of_what_a_schema_refers_to(reference: str) -> None:
    described = tool("f", {"x": {"$ref": reference}, "n": {"type": "integer"}})
    described["function"]["parameters"]["$defs"] = DEFINITIONS
    described["function"]["parameters"]["required"] = ["a"]
    assert Functions([described]).value("f", "x", "5") == 5


@pytest.mark.parametrize(
    "reference",
    ["#/$defs/none", "#/required/1", "#/required/a", "#/required/0", "n", "#n", "https://x/n", 5],
)
def test_a_reference_to_nothing_says_no_type(reference: Any) -> None:
    described = tool("f", {"x": {"$ref": reference}})
    described["function"]["parameters"]["required"] = ["a"]
    assert Functions([described]).value("f", "x", "5") == "5"


def test_parameters_themselves_may_be_elsewhere() -> None:
    described = tool("f")
    described["function"]["parameters"] = {
        "$ref": "#/$defs/all",
        "$defs": {"all": {"properties": {"x": {"$ref": "#/$defs/n"}}}, "n": {"type": "integer"}},
    }
    assert Functions([described]).value("f", "x", "5") == 5


def test_a_value_that_no_schema_has_is_text_or_json() -> None:
    functions = Functions([tool("f"), {"type": "function", "function": {"name": "g"}}])
    for name in ("f", "g", "h"):
        assert functions.value(name, "x", "42") == "42"
        assert functions.value(name, "x", "[42]") == [42]


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ("f", "tools is 'f'; expected a list"),
        ({"f": 1}, "expected a list such as"),
        (["f"], "tool 0 is 'f'; expected"),
        ([{"name": "f"}], "tool 0 is .*; expected"),
        ([{"type": "search", "function": {"name": "f"}}], "has type 'search'; expected 'function'"),
        ([{"type": "function", "function": {}}], "is called None; expected letters"),
        ([tool("<tool_call>")], "is called '<tool_call>'; expected letters"),
        ([tool("f" * 129)], "at most 128"),
        ([tool("f"), tool("f")], "tool 1 is called 'f', as another one"),
        ([{"type": "function", "function": {"name": "f", "parameters": []}}], "has .. as param"),
        ([tool("f", {"x": {1, 2}})], "holds something that is not JSON"),
        ([tool("f", {"maximum": float("inf")})], "holds something that is not JSON"),
        ([tool("f", {"maximum": float("nan")})], "holds something that is not JSON"),
    ],
)
def test_what_is_no_description_is_refused(tools: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Functions(tools)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'it\\'s'", "it's"),
        ('"a\\tb\\x41\\u00e9\\U0001f600"', "a\tbAé\U0001f600"),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ("'\\d'", "\\d"),
        (
            "[1, -2.5e3, (True, None), {'a': [], \"b\": {}},]",
            [1, -2500.0, [True, None], {"a": [], "b": {}}],
        ),
    ],
)
def test_literals_are_read_as_python_reads_them(text: str, value: Any) -> None:
    assert read_literal(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "'a",
        "[1 2]",
        "[1",
        "{'a'}",
        "1 2",
        "'\\ud800'",
        "'\\U00110000'",
        "1.2.3",
        "01",
        "[" * 60 + "]" * 60,
    ]
    + ["f(1)", "f(x=)", "f(", "(x=1)", "f(x=1"],
)
def test_what_is_no_literal_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError):
        read_literal(text)
    with pytest.raises(UnreadableError):
        assert read_expressions(text or "(")


def test_expressions() -> None:
    assert read_expressions("f()\ng(x=1, 'a b'='c'), h.i-j( y = [1] )") == [
        ("f", {}),
        ("g", {"x": 1, "a b": "c"}),
        ("h.i-j", {"y": [1]}),
    ]
