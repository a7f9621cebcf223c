"""What may be given as a schema, a regular expression and a grammar, and how it is typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgerun.engine.chooser.params import SamplingParams, all_options
from edgerun.engine.constraints.kinds import MAX_BYTES
from edgerun.errors import SamplingError

OPTIONS = {entry.name: entry for entry in all_options()}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"ä": {"type": "integer"}}}


def refusal(**options: Any) -> str:
    with pytest.raises(SamplingError) as error:
        SamplingParams(**options)
    return str(error.value)


def typed(name: str, text: str) -> Any:
    entry = OPTIONS[name]
    return entry.kind.check(name, entry.read(text))


def test_a_schema_is_an_object_or_its_text() -> None:
    text = SamplingParams(json_schema=SCHEMA).values()["json_schema"]
    assert json.loads(text) == SCHEMA
    spaced = json.dumps(SCHEMA, indent=4, ensure_ascii=False)
    assert SamplingParams(json_schema=spaced) == SamplingParams(json_schema=SCHEMA)
    assert SamplingParams(json_schema=True).values()["json_schema"] == "true"
    assert SamplingParams(json_schema={}).values()["json_schema"] == "{}"
    assert not any(each.is_active for each in SamplingParams(json_schema=None).processors)


def test_schemas_and_grammars_are_typed_as_files(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(SCHEMA).encode())
    assert json.loads(typed("json_schema", str(file))) == SCHEMA
    assert json.loads(typed("json_schema", " " + json.dumps(SCHEMA))) == SCHEMA
    assert typed("json_schema", "true") == "true"
    grammar = tmp_path / "g.lark"
    grammar.write_text('start: "a"\n')
    assert typed("grammar", str(grammar)) == 'start: "a"\n'
    assert typed("regex", " a|b") == " a|b"


def test_a_long_value_is_shown_in_part() -> None:
    entry = OPTIONS["regex"]
    assert entry.kind.write(None) == "none"
    assert entry.kind.write("[a-z]+") == "[a-z]+"
    assert len(entry.kind.write("a\n" * 9999)) < 500
    assert "\n" not in OPTIONS["grammar"].kind.write('start: x\nx: "a"')


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"json_schema": 5}, "json_schema is 5; expected a JSON schema: an object, or its text"),
    ({"json_schema": "5"}, "json_schema is 5; expected a JSON schema"),
    ({"json_schema": [SCHEMA]}, "expected a JSON schema: an object"),
    ({"json_schema": "{"}, "json_schema is '{', which is not JSON: Expecting property name"),
    ({"json_schema": ""}, "json_schema is '', which is not JSON"),
    ({"json_schema": '{"a": NaN}'}, "NaN is no number of JSON"),
    ({"json_schema": '{"a":' * 100_000}, "json_schema is nested too deeply"),
    ({"json_schema": {"minimum": float("inf")}}, "json_schema holds what JSON cannot express"),
    ({"json_schema": {"enum": {1, 2}}}, "json_schema holds what JSON cannot express"),
    ({"json_schema": {"enum": ["x" * MAX_BYTES]}}, "json_schema has 1048"),
    ({"json_schema": " " * 10_000_000}, "json_schema has 10000000 bytes; expected at most 1048576"),
    ({"json_schema": '{"const": "\ud800"}'}, "json_schema holds half of a pair of surrogates"),
    ({"regex": ""}, "regex is ''; expected a regular expression"),
    ({"regex": b"a"}, "regex is b'a'; expected"),
    ({"regex": "a" * 70_000}, "regex has 70000 bytes; expected at most 65536"),
    ({"regex": "\udc00"}, "regex holds half of a pair of surrogates"),
    (
        {"grammar": "  \n"},
        "grammar is ' \\n'; expected a grammar in Lark's form, or in llama.cpp's",
    ),
    ({"grammar": 1}, "grammar is 1; expected"),
    ({"grammar": "# " * MAX_BYTES}, "grammar has 2097152 bytes"),
    ({"regex": "a", "grammar": 'start: "a"'}, "regex and grammar are both given: leave one out"),
    ({"json_schema": {}, "regex": "a"}, "json_schema and regex are both given"),
]


@pytest.mark.parametrize(("options", "words"), MISTAKES, ids=lambda each: str(each)[:40])
def test_mistakes_are_named(options: dict[str, Any], words: str) -> None:
    message = refusal(**options)
    assert words in message
    assert "\n" not in message


def test_a_schema_that_contains_itself_is_refused() -> None:
    schema: dict[str, Any] = {}
    schema["items"] = schema
    assert "json_schema holds what JSON cannot express" in refusal(json_schema=schema)


@pytest.mark.parametrize("name", ["json_schema", "grammar"])
def test_files_that_cannot_be_read_are_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xe4\xf6")
    (tmp_path / "long").write_bytes(b" " * (MAX_BYTES + 1))
    for path, words in (
        ("none.json", "No such file or directory"),
        (".", "Is a directory"),
        ("latin", "it is not text in UTF-8"),
        ("long", "has more than 1048576 bytes"),
        ("nul\0l", "it is not text in UTF-8"),
        ("x" * 5000, "File name too long"),
    ):
        with pytest.raises(SamplingError) as refused:
            OPTIONS[name].read(str(tmp_path / path))
        assert words in str(refused.value)
        assert "expected a file with a " in str(refused.value)
    for path in ("", " "):
        with pytest.raises(SamplingError, match=f"^'{path}' is empty and names no file; expected"):
            OPTIONS[name].read(path)
