"""A value that cannot leave a range."""

from __future__ import annotations

import numpy as np

from edgerun.ops.base import F32, SMALLEST_NORMAL, Attribute, Example, Op, normal, rows


def softcap(x: F32, *, bound: float) -> F32:
    """``bound * tanh(x / bound)``, which is close to ``x`` where that is small.

    Source: Gemma Team 2024 (Gemma 2), section 2, logit soft-capping.
    """
    limit = np.float32(bound)
    return np.asarray(np.tanh(x / limit) * limit)


def _examples() -> list[Example]:
    examples = []
    for scale in (1e-3, 1.0, 40.0):
        x = np.float32(scale) * normal((3, 70), 1)
        x[0, :3] = -3000, 3000, 0
        examples.append(Example({"x": x}, {"bound": 5.0}))
        examples.append(Example({"x": x[1:]}, {"bound": 30.0}))
    return examples


OP = Op(
    inputs=(rows("x", "width"),),
    outputs=(rows("out", "width"),),
    define=softcap,
    attributes={"bound": Attribute(float, SMALLEST_NORMAL)},
    tolerance=1e-6,
    examples=_examples,
)
