"""Normalisation of rows by their mean and their deviation from it."""

from __future__ import annotations

import numpy as np

from edgerun.ops.base import (
    F32,
    SMALLEST_NORMAL,
    Attribute,
    Example,
    Op,
    normal,
    rows,
    vector,
)


@np.errstate(over="ignore", invalid="ignore")  # an infinite element becomes NaN
def layer_norm(x: F32, weight: F32, bias: F32 | None = None, *, epsilon: float) -> F32:
    """``(x - mean(x)) / sqrt(var(x) + epsilon) * weight + bias``, without a bias if it is None.

    Source: Ba, Kiros and Hinton 2016, equations 3 and 4.
    """
    centred = x - np.mean(x, axis=-1, keepdims=True, dtype=np.float32)
    variance: F32 = np.mean(centred * centred, axis=-1, keepdims=True, dtype=np.float32)
    normalised: F32 = centred / np.sqrt(variance + np.float32(epsilon)) * weight
    return normalised if bias is None else normalised + bias


def _examples() -> list[Example]:
    examples = []
    for shape, mean in (((1, 7), 0.0), ((3, 64), 5.0), ((2, 97), -2.0)):
        x = normal(shape, 1) + np.float32(mean)
        plain = {"x": x, "weight": normal(shape[1:], 2)}
        examples.append(Example(plain, {"epsilon": 1e-5}))
        examples.append(Example({**plain, "bias": normal(shape[1:], 3)}, {"epsilon": 1e-3}))
    return examples


OP = Op(
    inputs=(rows("x", "width"), vector("weight", "width"), vector("bias", "width", optional=True)),
    outputs=(rows("out", "width"),),
    define=layer_norm,
    attributes={"epsilon": Attribute(float, SMALLEST_NORMAL)},
    tolerance=2e-6,
    examples=_examples,
)
