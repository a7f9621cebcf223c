"""Normalisation of rows, or of groups of their elements, by mean and deviation from it."""

from __future__ import annotations

import numpy as np

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


@np.errstate(over="ignore", invalid="ignore")  # an infinite element becomes NaN
def layer_norm(x: F32, weight: F32, bias: F32 | None = None, *, groups: int, epsilon: float) -> F32:
    """``(x - mean(x)) / sqrt(var(x) + epsilon) * weight + bias``, without a bias if it is None.

    Mean and variance are those of each of ``groups`` groups of a row.

    Source: Ba, Kiros and Hinton 2016, equations 3 and 4.
    """
    parts = x.reshape(len(x), groups, x.shape[1] // groups)
    centred = parts - np.mean(parts, axis=-1, keepdims=True, dtype=np.float32)
    variance: F32 = np.mean(centred * centred, axis=-1, keepdims=True, dtype=np.float32)
    standard = centred / np.sqrt(variance + np.float32(epsilon))
    normalised: F32 = standard.reshape(x.shape) * weight
    return normalised if bias is None else normalised + bias


def _examples() -> list[Example]:
    examples = []
    for shape, mean in (((1, 7), 0.0), ((3, 64), 5.0), ((2, 97), -2.0)):
        x = normal(shape, 1) + np.float32(mean)
        plain = {"x": x, "weight": normal(shape[1:], 2)}
        examples.append(Example(plain, {"epsilon": 1e-5, "groups": 1}))
        biased = {**plain, "bias": normal(shape[1:], 3)}
        examples.append(Example(biased, {"epsilon": 1e-3, "groups": 1}))
    for shape, groups in (((1, 6), 2), ((3, 64), 4), ((2, 96), 3)):
        grouped = {"x": normal(shape, 1) + np.float32(2), "weight": normal(shape[1:], 2)}
        examples.append(Example(grouped, {"epsilon": 1e-5, "groups": groups}))
    return examples


OP = Op(
    inputs=(rows("x", "width"), vector("weight", "width"), vector("bias", "width", optional=True)),
    outputs=(rows("out", "width"),),
    define=layer_norm,
    attributes={"groups": COUNT, "epsilon": Attribute(float, SMALLEST_NORMAL)},
    divides=(("groups", "width"),),
    tolerance=2e-6,
    examples=_examples,
)
