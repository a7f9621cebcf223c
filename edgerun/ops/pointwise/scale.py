"""A value times a number."""

from __future__ import annotations

import numpy as np

from edgerun.ops.base import F32, Attribute, Example, Op, normal, rows


def scale(x: F32, *, factor: float) -> F32:
    """``x * factor``."""
    return np.asarray(x * np.float32(factor))


def _examples() -> list[Example]:
    shapes = [(1, 7), (3, 64), (2, 130)]
    return [Example({"x": normal(shape, 1)}, {"factor": -0.375}) for shape in shapes]


OP = Op(
    inputs=(rows("x", "width"),),
    outputs=(rows("out", "width"),),
    define=scale,
    attributes={"factor": Attribute(float)},
    examples=_examples,
)
