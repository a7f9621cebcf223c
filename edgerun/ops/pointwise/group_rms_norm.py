"""Root-mean-square normalisation of groups of a row's elements, each with weights of its own."""

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
def group_rms_norm(x: F32, weight: F32, *, groups: int, epsilon: float) -> F32:
    """``x / sqrt(mean(x**2) + epsilon) * weight``, with a mean for each of ``groups`` groups.

    Source: Dao and Gu 2024, section 7.
    """
    parts = x.reshape(len(x), groups, x.shape[1] // groups)
    mean: F32 = np.mean(parts * parts, axis=-1, keepdims=True, dtype=np.float32)
    normalised = parts / np.sqrt(mean + np.float32(epsilon))
    return np.asarray(normalised.reshape(x.shape) * weight, np.float32)


def _examples() -> list[Example]:
    shapes = [((1, 6), 2), ((3, 64), 4), ((2, 96), 3)]
    return [
        Example(
            {"x": normal(shape, 1), "weight": normal(shape[1:], 2)},
            {"groups": groups, "epsilon": 1e-5},
        )
        for shape, groups in shapes
    ]


OP = Op(
    inputs=(rows("x", "width"), vector("weight", "width")),
    outputs=(rows("out", "width"),),
    define=group_rms_norm,
    attributes={"groups": COUNT, "epsilon": Attribute(float, SMALLEST_NORMAL)},
    divides=(("groups", "width"),),
    tolerance=5e-7,
    examples=_examples,
)
