"""The sum of a value's parts, but for the first, and of a narrower value."""

from __future__ import annotations

from edgerun.ops.base import F32, MAX_SIZE, Attribute, Example, Op, normal, rows


def add_to_others(row: F32, whole: F32, *, parts: int) -> F32:
    """``whole`` with ``row`` added to each of its ``parts`` behind the first."""
    out = whole.reshape(len(whole), parts, -1).copy()
    out[:, 1:] += row[:, None]
    return out.reshape(whole.shape)


def _examples() -> list[Example]:
    examples = []
    for height, parts, width in [(1, 3, 5), (3, 2, 64), (2, 4, 24)]:
        inputs = {"row": normal((height, width), 1), "whole": normal((height, parts * width), 2)}
        examples.append(Example(inputs, {"parts": parts}))
    return examples


OP = Op(
    inputs=(rows("row", "width"), rows("whole", "parts*width")),
    outputs=(rows("out", "parts*width"),),
    define=add_to_others,
    attributes={"parts": Attribute(int, 2, MAX_SIZE)},
    examples=_examples,
)
