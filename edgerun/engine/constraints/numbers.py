"""Numbers in JSON schemas, such that llguidance (1.9) holds replies to what they say.

It reads all of them as floats of 64 bits, so that of large whole numbers others would be written or
allowed. And behind ``"exclusiveMinimum": 0`` it allows 0 where less than 1 is the most, be that
said beside it or by another schema that it joins with this one (``allOf``, ``$ref``). What it would
take for something else is said otherwise here: never is more allowed than a schema says, and of
numbers that nobody misses a few are not.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from edgerun.errors import SamplingError
from edgerun.values import shown

Number: TypeAlias = "int | float"

EXACT = 2**53  # up to which a float holds every whole number
MOST = 92 * 10**17  # a bound; the next of so few digits is beyond 64 bits
UNBOUNDED = 10**18  # from here on llguidance needs a bound at the other side as well
DIGITS = 15  # that a float has for certain
MOST_REMAINDERS = 2**18  # of a division, each of which is a state; more are over a limit later
# Whose values are schemas by name, and whose are values that replies may be.
OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
OF_VALUES = ("const", "enum")
NEVER_READ = ("default", "examples")
JOINED = ("allOf", "anyOf", "oneOf")  # schemas of the value that the schema around them is of


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


class Context(NamedTuple):
    """What says something of a schema beside itself.

    Attributes:
        ends: at either side all bounds of the whole document, such that those of the other side may
            be compared with them, increasing.
        is_whole: whether the values of the schema are whole numbers, if they are numbers.
    """

    ends: tuple[list[Number], ...]
    is_whole: bool = False


def with_exact_numbers(schema: Any) -> Any:
    """The same schema, with numbers that llguidance reads as they are meant.

    Args:
        schema: as JSON has it.

    Raises:
        SamplingError: it asks for a number that cannot be held exactly, or is nested too deeply.
    """
    try:
        ends = tuple(sorted(-bound.value for bound in _bounds(schema, side)) for side in SIDES)
        return _exact(schema, Context(ends))
    except RecursionError as error:
        raise SamplingError("the schema is nested too deeply") from error


def _bounds(value: Any, side: Side) -> Iterator[Bound]:
    """All bounds at one side, also of what is no schema: nothing is lost with one too many."""
    if isinstance(value, Mapping) and (bound := _bound(value, side)) is not None:
        yield bound
    if isinstance(value, list | Mapping):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _bounds(each, side)


def _exact(schema: Any, context: Context) -> Any:
    if isinstance(schema, list):
        return [_exact(each, context) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    _check_multiple(schema.get("multipleOf"))
    context = context._replace(is_whole=_is_whole(schema.get("type"), context))
    parts = {key: _part(key, value, context) for key, value in schema.items()}
    return _with_exact_bounds(parts, context)


def _part(key: str, value: Any, context: Context) -> Any:
    if key in OF_VALUES:
        _check_values(key, value)
    if key in (*OF_VALUES, *NEVER_READ):
        return value
    if key not in JOINED:
        context = context._replace(is_whole=False)
    if key in OF_SCHEMAS and isinstance(value, Mapping):
        return {name: _exact(each, context) for name, each in value.items()}
    return _exact(value, context)


def _is_whole(types: Any, context: Context) -> bool:
    names = types if isinstance(types, list) else [types]
    return context.is_whole or ("integer" in names and "number" not in names)


def _check_multiple(value: Any) -> None:
    digits = "".join(map(str, Decimal(str(value)).as_tuple().digits)) if _is_number(value) else ""
    if int(digits.strip("0") or 0) > MOST_REMAINDERS:
        raise SamplingError(
            f"multipleOf is {shown(value)}; expected at most {MOST_REMAINDERS}, zeros at its ends "
            "and the point left out"
        )


def _check_values(key: str, value: Any) -> None:
    if isinstance(value, list | Mapping):
        for each in value.values() if isinstance(value, Mapping) else value:
            _check_values(key, each)
    elif type(value) is int and not (abs(value) < 2**63 and float(value) == value):
        raise SamplingError(
            f"{key} has {shown(value)}, and whole numbers are exact up to {EXACT} (2**53): "
            "make it a text, or allow a range"
        )


def _with_exact_bounds(schema: dict[str, Any], context: Context) -> dict[str, Any]:
    low, high = (_bound(schema, side) for side in SIDES)
    lower, upper = context.ends
    is_whole = context.is_whole
    changed = [_inward(low, upper, is_whole), _inward(high, lower, is_whole)]
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


def _inward(bound: Bound | None, others: Sequence[Number], is_whole: bool) -> Number | None:
    """The bound to say instead, inclusive; None where llguidance understands it as it is.

    Args:
        bound: to be said.
        others: those at the other side that may be joined with it, increasing.
        is_whole: whether it is one of whole numbers.
    """
    if bound is None:
        return None
    value = bound.value
    if abs(value) >= EXACT:
        return _rounded(int(value) + bound.is_exclusive, is_whole)
    beyond = bisect(others, value)
    most = others[beyond] if beyond < len(others) else math.inf
    if bound.is_exclusive and value >= 0 and value == int(value) and most < value + 1:
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
