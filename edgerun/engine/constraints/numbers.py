"""Numbers in JSON schemas, such that llguidance (1.9) holds replies to what they say.

It reads all of them as floats of 64 bits, so that of large whole numbers others would be written or
allowed. And behind ``"exclusiveMinimum": 0`` it allows 0 where less than 1 is the most. What it
would take for something else is said otherwise here: never is more allowed than a schema says, and
of numbers that nobody misses a few are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from edgerun.errors import SamplingError
from edgerun.values import shown

Number: TypeAlias = "int | float"

EXACT = 2**53  # up to which a float holds every whole number
MOST = 92 * 10**17  # a bound; the next of so few digits is beyond 64 bits
UNBOUNDED = 10**18  # from here on llguidance needs a bound at the other side as well
DIGITS = 15  # that a float has for certain
# Whose values are schemas by name, and whose are values that replies may be.
OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
OF_VALUES = ("const", "enum")
NEVER_READ = ("default", "examples")


class Bound(NamedTuple):
    """Values are at least this, or above it; upper bounds have their signs changed."""

    value: Number
    is_exclusive: bool


class Side(NamedTuple):
    """One end of a range: the sign that makes a lower bound of it, and its keywords."""

    sign: int
    inclusive: str
    exclusive: str


SIDES = (Side(1, "minimum", "exclusiveMinimum"), Side(-1, "maximum", "exclusiveMaximum"))


def with_exact_numbers(schema: Any) -> Any:
    """The same schema, with numbers that llguidance reads as they are meant.

    Args:
        schema: as JSON has it.

    Raises:
        SamplingError: it asks for a number that cannot be held exactly, or is nested too deeply.
    """
    try:
        return _exact(schema)
    except RecursionError as error:
        raise SamplingError("the schema is nested too deeply") from error


def _exact(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_exact(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return _with_exact_bounds({key: _part(key, value) for key, value in schema.items()})


def _part(key: str, value: Any) -> Any:
    if key in OF_VALUES:
        _check_values(key, value)
    if key in (*OF_VALUES, *NEVER_READ):
        return value
    if key in OF_SCHEMAS and isinstance(value, Mapping):
        return {name: _exact(each) for name, each in value.items()}
    return _exact(value)


def _check_values(key: str, value: Any) -> None:
    if isinstance(value, list | Mapping):
        for each in value.values() if isinstance(value, Mapping) else value:
            _check_values(key, each)
    elif type(value) is int and not (abs(value) < 2**63 and float(value) == value):
        raise SamplingError(
            f"{key} has {shown(value)}, and whole numbers are exact up to {EXACT} (2**53): "
            "make it a text, or allow a range"
        )


def _with_exact_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    low, high = (_bound(schema, side) for side in SIDES)
    is_whole = schema.get("type") == "integer"
    changed = [_inward(low, high, is_whole), _inward(high, low, is_whole)]
    for index, value in enumerate(changed):
        if value is not None and value >= UNBOUNDED and (low, high)[1 - index] is None:
            changed[1 - index] = -MOST
    for side, value in zip(SIDES, changed, strict=True):
        if value is not None:
            schema.pop(side.exclusive, None)
            schema[side.inclusive] = side.sign * value
    return schema


def _bound(schema: Mapping[str, Any], side: Side) -> Bound | None:
    """The narrowest bound of a schema at one side; until draft 4 a flag made it exclusive."""
    inclusive, exclusive = schema.get(side.inclusive), schema.get(side.exclusive)
    bounds = []
    if _is_number(inclusive):
        bounds.append(Bound(side.sign * inclusive, exclusive is True))
    if _is_number(exclusive):
        bounds.append(Bound(side.sign * exclusive, is_exclusive=True))
    return max(bounds, default=None)


def _is_number(value: Any) -> TypeGuard[Number]:
    return type(value) in (int, float)


def _inward(bound: Bound | None, other: Bound | None, is_whole: bool) -> Number | None:
    """The bound to say instead, inclusive; None where llguidance understands it as it is."""
    if bound is None:
        return None
    value = bound.value
    if abs(value) >= EXACT:
        return _rounded(int(value) + bound.is_exclusive, is_whole)
    most = math.inf if other is None else -other.value
    if bound.is_exclusive and value >= 0 and value == int(value) and value < most < value + 1:
        tiny = 10.0 ** (math.floor(math.log10(most)) - DIGITS)
        return math.nextafter(value, math.inf) if value else tiny
    return None


def _rounded(value: int, is_whole: bool) -> int:
    """The next number from here on that a float holds, and of few digits unless ``is_whole``."""
    if value > MOST:
        raise SamplingError(
            f"a bound of numbers is {shown(value)} or its negative, beyond which none can be held; "
            f"expected at most {MOST}"
        )
    value = max(value, -MOST)
    unit, step = 1, 2 if is_whole else 10
    while True:
        rounded = -(-value // unit) * unit
        digits = str(abs(rounded)).rstrip("0")
        if float(rounded) == rounded and (is_whole or len(digits) <= DIGITS):
            return rounded
        unit *= step
