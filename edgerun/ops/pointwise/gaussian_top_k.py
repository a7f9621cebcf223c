"""A value of which the largest elements are left, as many as a normal distribution says."""

from __future__ import annotations

import numpy as np

from edgerun.ops.base import F32, Attribute, Example, Op, normal, rows


def gaussian_top_k(x: F32, *, deviations: float) -> F32:
    """What elements of a row are above its mean plus so many standard deviations, and else 0.

    The deviation is that of a whole population. Source: You et al. 2025 (Spark Transformer),
    statistical top-k, as Gemma 3n has it.
    """
    centred = x - np.mean(x, axis=1, keepdims=True, dtype=np.float32)
    deviation = np.sqrt(np.mean(centred * centred, axis=1, keepdims=True, dtype=np.float32))
    return np.asarray(np.maximum(centred - deviation * np.float32(deviations), 0))


def _examples() -> list[Example]:
    examples = []
    for shape in [(1, 7), (3, 64), (2, 130)]:
        x = normal(shape, 1) + np.float32(0.5)
        examples += [Example({"x": x}, {"deviations": each}) for each in (1.6448536, -0.25, 0.0)]
    return examples


OP = Op(
    inputs=(rows("x", "width"),),
    outputs=(rows("out", "width"),),
    define=gaussian_top_k,
    attributes={"deviations": Attribute(float)},
    tolerance=1e-6,
    examples=_examples,
)
