"""The sum of two values."""

from __future__ import annotations

from edgerun.ops.base import F32, Example, Op, normal, rows


def add(a: F32, b: F32) -> F32:
    """``a + b``."""
    return a + b


def _examples() -> list[Example]:
    shapes = [(1, 7), (3, 64), (2, 130)]
    return [Example({"a": normal(shape, 1), "b": normal(shape, 2)}) for shape in shapes]


OP = Op(
    inputs=(rows("a", "width"), rows("b", "width")),
    outputs=(rows("out", "width"),),
    define=add,
    examples=_examples,
)
