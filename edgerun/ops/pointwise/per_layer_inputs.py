"""What all layers are given beside the residual stream, a part of a row for each."""

from __future__ import annotations

from edgerun.ops.base import (
    COUNT,
    F32,
    SMALLEST_NORMAL,
    Attribute,
    Example,
    Op,
    normal,
    rows,
    vector,
)
from edgerun.ops.rms_norm import rms_norm


def per_layer_inputs(x: F32, tokens: F32, weight: F32, *, parts: int, epsilon: float) -> F32:
    """Normalises each of the ``parts`` of ``x``, all with one weight, and adds ``tokens``."""
    return rms_norm(x, weight, epsilon=epsilon) + tokens


def _examples() -> list[Example]:
    examples = []
    for height, parts, width in [(1, 3, 7), (3, 2, 64), (2, 6, 16)]:
        shape = (height, parts * width)
        inputs = {"x": normal(shape, 1), "tokens": normal(shape, 2), "weight": normal((width,), 3)}
        examples.append(Example(inputs, {"parts": parts, "epsilon": 1e-3}))
    return examples


OP = Op(
    inputs=(rows("x", "parts*part"), rows("tokens", "parts*part"), vector("weight", "part")),
    outputs=(rows("out", "parts*part"),),
    define=per_layer_inputs,
    attributes={"parts": COUNT, "epsilon": Attribute(float, SMALLEST_NORMAL)},
    tolerance=5e-7,
    examples=_examples,
)
