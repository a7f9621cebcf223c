"""Root-mean-square normalisation of rows, or of the heads that rows consist of."""

from __future__ import annotations

import numpy as np

from edgerun.ops.base import (
    F32,
    SMALLEST_NORMAL,
    Attribute,
    Example,
    Kind,
    Op,
    Operand,
    normal,
    rows,
)


@np.errstate(over="ignore", invalid="ignore")  # an infinite element becomes NaN
def rms_norm(x: F32, weight: F32, *, epsilon: float) -> F32:
    """``x / sqrt(mean(x**2) + epsilon) * weight`` over groups of ``len(weight)`` elements.

    Source: Zhang and Sennrich 2019, equation 4.
    """
    groups = x.reshape(len(x), x.shape[1] // len(weight), len(weight))
    mean: F32 = np.mean(groups * groups, axis=-1, keepdims=True, dtype=np.float32)
    root: F32 = np.sqrt(mean + np.float32(epsilon))
    normalised = groups / root * weight
    return normalised.reshape(x.shape)


def _examples() -> list[Example]:
    shapes = [((1, 7), 7), ((3, 64), 64), ((2, 96), 16)]
    return [
        Example({"x": normal(shape, 1), "weight": normal((group,), 2)}, {"epsilon": 1e-5})
        for shape, group in shapes
    ]


OP = Op(
    inputs=(rows("x", "width"), Operand("weight", Kind.VECTOR, ("group",), of_heads=True)),
    outputs=(rows("out", "width"),),
    define=rms_norm,
    attributes={"epsilon": Attribute(float, SMALLEST_NORMAL)},
    divides=(("group", "width"),),
    tolerance=5e-7,
    examples=_examples,
)
