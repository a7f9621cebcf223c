"""One of equal parts of every row."""

from __future__ import annotations

import numpy as np

from edgerun.ops.base import COUNT, F32, Example, Op, normal, rows


def row_part(x: F32, *, parts: int, width: int, number: int) -> F32:
    """The part of that number, counted from 1, of rows of ``parts`` of ``width`` elements."""
    return np.ascontiguousarray(x[:, (number - 1) * width : number * width])


def _examples() -> list[Example]:
    examples = []
    for height, parts, width, number in [(1, 3, 7, 3), (3, 2, 64, 1), (2, 5, 24, 4)]:
        attributes = {"parts": parts, "width": width, "number": number}
        examples.append(Example({"x": normal((height, parts * width), 1)}, attributes))
    return examples


OP = Op(
    inputs=(rows("x", "parts*width"),),
    outputs=(rows("out", "width"),),
    define=row_part,
    attributes={"parts": COUNT, "width": COUNT, "number": COUNT},
    at_most=(("number", "parts"),),
    examples=_examples,
)
