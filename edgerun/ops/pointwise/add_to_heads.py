"""The sum of a value and of a narrower one, which is added to each of its heads."""

from __future__ import annotations

from edgerun.ops.base import COUNT, F32, Example, Op, normal, rows


def add_to_heads(a: F32, b: F32, *, heads: int) -> F32:
    """``a + b`` with ``b`` repeated ``heads`` times along the row."""
    return (a.reshape(len(a), heads, -1) + b[:, None]).reshape(a.shape)


def _examples() -> list[Example]:
    examples = []
    for height, heads, width in [(1, 3, 5), (3, 2, 64), (2, 16, 24), (4, 1, 7)]:
        inputs = {"a": normal((height, heads * width), 1), "b": normal((height, width), 2)}
        examples.append(Example(inputs, {"heads": heads}))
    return examples


OP = Op(
    inputs=(rows("a", "heads*head_dim"), rows("b", "head_dim")),
    outputs=(rows("out", "heads*head_dim"),),
    define=add_to_heads,
    attributes={"heads": COUNT},
    examples=_examples,
)
