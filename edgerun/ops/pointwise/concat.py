"""Rows of two values as one, one behind the other."""

from __future__ import annotations

import numpy as np

from edgerun.ops.base import F32, Example, Op, normal, rows


def concat(left: F32, right: F32) -> F32:
    """``left`` and then ``right`` of every row."""
    return np.concatenate([left, right], axis=1)


def _examples() -> list[Example]:
    shapes = [(1, 7, 5), (3, 64, 192), (2, 5, 130)]
    return [
        Example({"left": normal((height, left), 1), "right": normal((height, right), 2)})
        for height, left, right in shapes
    ]


OP = Op(
    inputs=(rows("left", "left"), rows("right", "right")),
    outputs=(rows("out", "left+right"),),
    define=concat,
    examples=_examples,
)
