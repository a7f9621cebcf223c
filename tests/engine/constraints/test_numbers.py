"""Numbers of schemas are those that are written, however large, and ends of ranges are ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.engine.constraints import trial
from edgerun.engine.constraints.kinds import Schema
from edgerun.engine.constraints.numbers import EXACT, MOST, with_exact_numbers
from edgerun.errors import SamplingError
from tests.engine.constraints.test_suite import accepts

ID = 1234567890123456789


def allows(schema: dict[str, Any], text: str) -> bool:
    return accepts(trial.grammar_of("json_schema", str(Schema().check("", schema))), text)


@pytest.mark.parametrize(
    ("schema", "number"),
    [
        ({"const": ID}, ID),
        ({"enum": ["a", [{"b": EXACT + 1}]]}, EXACT + 1),
        ({"properties": {"enum": {"const": -(2**63)}}}, -(2**63)),
        ({"anyOf": [{"type": "null"}, {"const": 2**64}]}, 2**64),
    ],
)
def test_whole_numbers_that_would_become_others_are_refused(
    schema: dict[str, Any], number: int
) -> None:
    with pytest.raises(SamplingError, match=rf" has {number}, and whole numbers are exact up to "):
        trial.grammar_of("json_schema", json.dumps(schema))


@pytest.mark.parametrize("number", [EXACT, -EXACT, 2**62, 1e22, -0.5])
def test_numbers_that_are_exact_are_written(number: float) -> None:
    assert allows({"const": number}, f"{number:.0f}" if abs(number) > 1 else str(number))


@pytest.mark.parametrize(
    ("schema", "allowed", "others"),
    [
        ({"minimum": EXACT + 1}, [EXACT + 2, 10**30], [EXACT, 0]),
        ({"exclusiveMaximum": 10**18}, [10**18 - 2**11, -(10**30)], [10**18, 10**18 + 1]),
        ({"minimum": ID}, [ID + 2**11], [ID - 1, ID - 21, 10**30]),
        ({"maximum": -ID}, [-ID - 2**11], [1 - ID, 0, ID]),
        ({"minimum": -(2**63), "maximum": 2**63 - 1}, [0, MOST, -MOST], [2**63, -(2**63) - 1]),
        ({"minimum": 0, "maximum": 2**64 - 1}, [0, 2**62], [-1, 2**64]),
        ({"maximum": 1e300}, [MOST, -1], [10**301]),
    ],
)
def test_bounds_that_no_float_holds_are_not_exceeded(
    schema: dict[str, Any], allowed: list[int], others: list[int]
) -> None:
    schema = {"type": "integer", **schema}
    assert [text for text in map(str, allowed) if not allows(schema, text)] == []
    assert [text for text in map(str, others) if allows(schema, text)] == []


def test_a_range_beyond_all_that_can_be_held_is_refused() -> None:
    with pytest.raises(SamplingError, match="a bound of numbers is 18446744073709551616 or its"):
        trial.grammar_of("json_schema", '{"minimum": 18446744073709551616}')
    with pytest.raises(SamplingError, match="nested too deeply"):
        with_exact_numbers(json.loads('{"items":' * 900 + "{}" + "}" * 900))


@pytest.mark.parametrize(
    ("low", "high", "allowed", "others"),
    [
        ({"exclusiveMinimum": 0}, {"maximum": 0.5}, ["0.5", "0.01"], ["0", "0.0", "0.51"]),
        ({"minimum": 0, "exclusiveMinimum": True}, {"maximum": 0.5}, ["0.1"], ["0"]),
        ({"minimum": -0.5}, {"exclusiveMaximum": 0}, ["-0.5", "-0.1"], ["0", "-0", "-0.0"]),
        ({"exclusiveMinimum": 7}, {"exclusiveMaximum": 7.5}, ["7.01", "7.4"], ["7", "7.5"]),
        ({"minimum": -1.5}, {"exclusiveMaximum": -1}, ["-1.5", "-1.2"], ["-1", "-1.0"]),
        ({"exclusiveMinimum": 0}, {"maximum": 1}, ["1", "0.5"], ["0"]),
    ],
)
def test_what_a_range_excludes_is_no_end_of_it(
    low: dict[str, Any], high: dict[str, Any], allowed: list[str], others: list[str]
) -> None:
    for type_ in ("number", ["number", "null"]):
        schema = {"type": type_, **low, **high}
        assert [text for text in allowed if not allows(schema, text)] == []
        assert [text for text in others if allows(schema, text)] == []


@pytest.mark.parametrize(
    "split",
    [
        lambda low, high: {"allOf": [low, high]},
        lambda low, high: {**low, "allOf": [high]},
        lambda low, high: {**high, "anyOf": [low, {"const": 4}]},
        lambda low, high: {"$defs": {"low": low}, "$ref": "#/$defs/low", **high},
    ],
)
def test_a_range_may_be_said_by_several_schemas(split: Any) -> None:
    for low, high, allowed, others in (
        ({"exclusiveMinimum": 0}, {"maximum": 0.5}, ["0.01", "0.5"], ["0", "0.51"]),
        ({"exclusiveMinimum": 3}, {"exclusiveMaximum": 3.5}, ["3.25"], ["3", "3.5"]),
        ({"minimum": -0.5}, {"exclusiveMaximum": 0}, ["-0.5", "-0.1"], ["0"]),
    ):
        schema = {"type": "number", **split(low, high)}
        assert [text for text in allowed if not allows(schema, text)] == []
        assert [text for text in others if allows(schema, text)] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "allOf": [{"minimum": ID}, {"maximum": ID + 5000}]},
        {"type": "integer", "minimum": ID, "allOf": [{"anyOf": [{"maximum": ID + 5000}]}]},
        {"type": ["null", "integer"], "minimum": ID, "maximum": ID + 5000},
    ],
)
def test_large_bounds_of_whole_numbers_are_narrowed_little(schema: dict[str, Any]) -> None:
    """As elsewhere, those of other numbers have few digits, between which there may be nothing."""
    assert allows(schema, str(ID + 2048))
    assert not any(allows(schema, str(number)) for number in (ID - 1, ID + 5001))


@pytest.mark.parametrize("number", [1_000_003, 2**31, -(10**400) - 1, 0.1234567, 9.999999e-9])
def test_a_division_of_many_remainders_is_refused_at_once(number: float) -> None:
    with pytest.raises(SamplingError, match="multipleOf is .*; expected at most 262144, zeros"):
        with_exact_numbers({"items": {"multipleOf": number}})


@pytest.mark.parametrize(
    "number", [0, 1, 2**18, 86_400, 3 * 10**100, 0.01, 1e300, 5e-324, "x", True]
)
def test_other_divisions_stay_as_they_are(number: Any) -> None:
    schema = {"properties": {"multipleOf": {"multipleOf": number}}}
    assert with_exact_numbers(schema) == schema


BOUNDS = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(-1e20, 1e20), st.sampled_from([0, 1, -1, 0.5, -0.5])
)


@settings(max_examples=200)
@given(
    st.dictionaries(
        st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]), BOUNDS
    ),
    st.sampled_from(["integer", "number"]),
)
def test_never_is_more_allowed_than_a_schema_says(bounds: dict[str, Any], type_: str) -> None:
    schema = {"type": type_, **bounds}
    try:
        exact = with_exact_numbers(schema)
    except SamplingError:
        return
    for end in bounds.values():
        value = int(end) if type_ == "integer" else end
        for near in (value, value - 1, value + 1, value * 2):
            assert holds(schema, near) or not holds(exact, near)


def holds(schema: dict[str, Any], value: float) -> bool:
    return all(
        {
            "minimum": lambda bound: value >= bound,
            "maximum": lambda bound: value <= bound,
            "exclusiveMinimum": lambda bound: value > bound,
            "exclusiveMaximum": lambda bound: value < bound,
        }[name](bound)
        for name, bound in schema.items()
        if name != "type"
    )


def test_what_is_no_bound_stays_as_it_is() -> None:
    schema = {
        "properties": {"minimum": {"maximum": 3}, "const": {"minimum": 2}},
        "default": 2**64,
        "examples": [2**64],
        "const": {"exclusiveMinimum": 0, "maximum": 0.5},
        "minimum": "5",
        "x": [True, None, {"maximum": 0.25, "minimum": 0}],
    }
    assert with_exact_numbers(schema) == schema
    assert with_exact_numbers(True) is True
