"""Random JSON schemas, and which values are as they say: written from the specification alone.

Only a few keywords, with their meaning in the drafts 6 to 2020-12.
"""

from __future__ import annotations

import math
import re
from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "bee", "häßlich", "x y", 'q"')
TEXT_PATTERNS = ("^[a-c]{1,4}$", "^[0-9]{1,6}-[0-9]{2}$", "^(ja|nein|☃)$")


def scalars() -> st.SearchStrategy[dict[str, Any]]:
    """Schemas of values without parts."""
    low = st.integers(-1000, 1000)
    return st.one_of(
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.builds(
            lambda least, size: {"type": "integer", "minimum": least, "maximum": least + size},
            low,
            st.integers(0, 500),
        ),
        st.builds(
            lambda least, size: {
                "type": "number",
                "minimum": least,
                "exclusiveMaximum": least + size,
            },
            low,
            st.integers(1, 100),
        ),
        st.just({"type": "integer", "minimum": 0, "maximum": 99, "multipleOf": 7}),
        st.builds(
            lambda least, size: {"type": "string", "minLength": least, "maxLength": least + size},
            st.integers(0, 3),
            st.integers(0, 4),
        ),
        st.sampled_from(TEXT_PATTERNS).map(lambda text: {"type": "string", "pattern": text}),
        st.lists(st.sampled_from(["red", "☃", 3, None, True, -0.5]), min_size=1, unique=True).map(
            lambda values: {"enum": values}
        ),
        st.sampled_from(["it", 7, False, [1, {"k": "v"}]]).map(lambda value: {"const": value}),
    )


def arrays(items: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda item, least, more: {
            "type": "array",
            "items": item,
            "minItems": least,
            "maxItems": least + more,
        },
        items,
        st.integers(0, 2),
        st.integers(0, 2),
    )


def objects(values: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def of(properties: dict[str, Any], optional: set[str]) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name not in optional],
            "additionalProperties": False,
        }

    names = st.sampled_from(NAMES)
    return st.builds(of, st.dictionaries(names, values, max_size=3), st.sets(names, max_size=2))


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Schemas whose values are a few hundred bytes at most."""
    return st.recursive(
        scalars(),
        lambda parts: st.one_of(
            arrays(parts),
            objects(parts),
            st.lists(parts, min_size=1, max_size=3).map(lambda each: {"anyOf": each}),
        ),
        max_leaves=5,
    )


def is_valid(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is as a schema of ``schemas`` says."""
    if "anyOf" in schema:
        return any(is_valid(value, part) for part in schema["anyOf"])
    if "enum" in schema:
        return any(_same(value, each) for each in schema["enum"])
    if "const" in schema:
        return _same(value, schema["const"])
    return {
        "boolean": lambda: isinstance(value, bool),
        "null": lambda: value is None,
        "integer": lambda: _is_number(value, schema) and float(value).is_integer(),
        "number": lambda: _is_number(value, schema),
        "string": lambda: _is_text(value, schema),
        "array": lambda: _is_array(value, schema),
        "object": lambda: _is_object(value, schema),
    }[schema["type"]]()


def _same(value: Any, other: Any) -> bool:
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _is_number(value: Any, schema: dict[str, Any]) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    within = schema["minimum"] <= value <= schema.get("maximum", math.inf)
    below = value < schema.get("exclusiveMaximum", math.inf)
    return within and below and value % schema.get("multipleOf", value or 1) == 0


def _is_text(value: Any, schema: dict[str, Any]) -> bool:
    if not isinstance(value, str):
        return False
    fits = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", math.inf)
    return fits and re.search(schema.get("pattern", ""), value) is not None


def _is_array(value: Any, schema: dict[str, Any]) -> bool:
    if not isinstance(value, list) or not schema["minItems"] <= len(value) <= schema["maxItems"]:
        return False
    return all(is_valid(item, schema["items"]) for item in value)


def _is_object(value: Any, schema: dict[str, Any]) -> bool:
    if not isinstance(value, dict) or not set(schema["required"]) <= set(value):
        return False
    properties = schema["properties"]
    return all(name in properties and is_valid(value[name], properties[name]) for name in value)
