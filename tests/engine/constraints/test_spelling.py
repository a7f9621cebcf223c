"""Names of a schema are not spelled otherwise, where another schema would count for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgerun.engine.constraints import trial
from edgerun.engine.constraints.kinds import Schema
from tests.engine.constraints.test_suite import accepts

ROLE: dict[str, Any] = {"type": "object", "properties": {"role": {"enum": ["user"]}}}


def allows(schema: Any, text: str) -> bool:
    return accepts(trial.grammar_of("json_schema", str(Schema().check("", schema))), text)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (ROLE, r'{"\u0072ole":"admin"}'),
        (ROLE, r'{"role":"user","\u0072ole":"admin"}'),
        ({**ROLE, "additionalProperties": {"type": "string"}}, r'{"rol\u0065":"admin"}'),
        ({"patternProperties": {"^r": {"type": "integer"}}}, r'{"\u0072":"a"}'),
        ({"properties": {"é": {"type": "integer"}}}, r'{"\u00e9":"a"}'),
        ({"properties": {"a\nb": {"type": "integer"}}}, r'{"a\u000ab":"a"}'),
        ({"type": "array", "items": {"anyOf": [ROLE]}}, r'[{"\u0072ole":"admin"}]'),
        ({"$ref": "#/$defs/r", "$defs": {"r": ROLE}}, r'{"\u0072ole":"admin"}'),
    ],
)
def test_an_escape_makes_no_other_name(schema: Any, text: str) -> None:
    assert not allows(schema, text)
    other = json.loads(text, object_pairs_hook=_with_others)
    assert allows(schema, json.dumps(other, separators=(",", ":")))


def _with_others(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The same values with names that no schema knows."""
    return {f"x{index}": value for index, (_, value) in enumerate(pairs)}


@pytest.mark.parametrize("spelled", ["\\n", '\\"', "\\\\", "\\t", "\\b", "\\f", "\\r", "é", "☃"])
def test_all_that_has_a_letter_is_still_escaped(spelled: str) -> None:
    assert allows(ROLE, f'{{"x{spelled}":"{spelled}"}}')


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string"}, r'"\u001b"'),
        ({"type": "object", "additionalProperties": {"type": "string"}}, r'{"a":"\u001b"}'),
        ({**ROLE, "additionalProperties": False}, '{"role":"user"}'),
        ({"properties": {"a": {"const": "\x1b"}}}, r'{"a":"\u001b"}'),
        ({"properties": {"a": {"type": "string", "pattern": r"^\x1b$"}}}, r'{"a":"\u001b"}'),
        ({**ROLE, "x-guidance": {"json_allowed_escapes": "u"}}, r'{"a":"\u001b"}'),
    ],
)
def test_escapes_by_number_stay_where_they_do_no_harm(schema: Any, text: str) -> None:
    assert allows(schema, text)
