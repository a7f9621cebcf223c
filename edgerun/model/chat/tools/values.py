"""Values in calls: JSON in and out, nothing that JSON has not."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

MAX_DEPTH = 48  # of brackets in arguments: less than a conversation may hold


class UnreadableError(Exception):
    """What is written is no call."""


def read_json(text: str) -> Any:
    """Reads JSON as models write it: line breaks and other controls in strings are allowed.

    Of a name that an object has twice the last value counts.

    Raises:
        UnreadableError: it is not JSON, or holds a number that is not finite or has thousands of
            digits.
    """
    try:
        return json.loads(text, strict=False, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(str(error)) from error


def write_json(value: Any) -> str:
    """Writes a value as JSON, other scripts as they are.

    Raises:
        UnreadableError: it cannot be written so, or holds half of a pair of surrogates.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UnreadableError(str(error)) from error
    return text


def read_object(text: str) -> dict[str, Any]:
    """Reads JSON that must be an object; a text without anything in it is an empty one.

    Raises:
        UnreadableError: it is something else.
    """
    value = read_json(text) if text.strip() else {}
    if not isinstance(value, dict):
        raise UnreadableError("no object")
    return value


def depth_of(value: Any, limit: int = MAX_DEPTH) -> int:
    """How many levels of lists and objects a value has, as far as ``limit`` and one more."""
    depth, level = 0, [value]
    while depth <= limit:
        level = [item for each in level for item in _items(each)]
        if not level:
            return depth
        depth += 1
    return depth


def _items(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [*value.values(), None]  # so that an empty one is a level too
    return [*value, None] if isinstance(value, list | tuple) else []


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large for a number")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")
