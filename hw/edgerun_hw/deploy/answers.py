"""What answers of the helper on a board look like: one that was altered may say anything."""

from __future__ import annotations

from typing import Any

WORD = range(1 << 32)
TIME = range(1 << 36)  # seconds since 1970, some 2,000 years
APPLICATION = {"name": str, "digest": str}
MAYBE = (APPLICATION, None)
TEXT_OR_NONE = (str, None)
REGISTERS = {"id": WORD, "version": WORD}
BEGUN = {"old": MAYBE, "new": APPLICATION, "is_loaded": bool, "recovered": TEXT_OR_NONE}
SHAPES: dict[str, Any] = {
    "hello": {
        "board": TEXT_OR_NONE,
        "model": str,
        "compatible": [str],
        "loader": str,
        "state": str,
        "needs_signature": bool,
        "trusts_keys": bool,
    },
    "status": {
        "state": str,
        "loader": str,
        "running": TEXT_OR_NONE,
        "active": MAYBE,
        "previous": MAYBE,
        "since": (TIME, None),
        "is_loaded": bool,
        "is_intact": bool,
        "signature": TEXT_OR_NONE,
        "interrupted": ({"kind": str, "phase": str, "new": APPLICATION}, None),
        "damaged": [str],
        "locked_by": TEXT_OR_NONE,
        "registers": ({**REGISTERS, "as_expected": bool}, None),
        "applications": [str],
        "overlays": [str],
    },
    "begin": BEGUN,
    "rollback": ({"done": bool, "recovered": str}, BEGUN),
    "load": {"state": str},
    "verify": {"registers": (REGISTERS, {})},
    "confirm": {"previous": MAYBE},
}


def is_answer(op: str, answer: dict[str, Any]) -> bool:
    """Whether an answer to a request has what is read of it."""
    return op not in SHAPES or _fits(answer, SHAPES[op])


def _fits(value: Any, shape: Any) -> bool:
    """Whether a value is as a shape says.

    A shape is a type, a range of whole numbers, None, a list of what every element is, a tuple of
    what it may be, or an object's fields, beside which there may be more; of none, ``{}``.
    """
    if isinstance(shape, tuple):
        return any(_fits(value, choice) for choice in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(element, shape[0]) for element in value)
    if shape == {} or shape is None:
        return bool(value == shape)
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(
            key in value and _fits(value[key], field) for key, field in shape.items()
        )
    if isinstance(shape, range):
        return type(value) is int and value in shape
    return type(value) is shape
