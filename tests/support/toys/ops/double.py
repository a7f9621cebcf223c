"""Twice a value."""

from __future__ import annotations

from edgerun.ops.base import F32, Example, Op, normal, rows


def double(x: F32) -> F32:
    """``2 * x``."""
    return x + x


def _examples() -> list[Example]:
    return [Example({"x": normal((height, 64), height)}) for height in (1, 5)]


OP = Op(
    inputs=(rows("x", "width"),),
    outputs=(rows("out", "width"),),
    define=double,
    examples=_examples,
)
