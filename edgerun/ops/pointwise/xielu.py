"""An activation that grows as a square above 0 and as a line below it."""

from __future__ import annotations

import numpy as np

from edgerun.ops.base import F32, Attribute, Example, Op, normal, rows


def xielu(x: F32, *, square: float, bend: float, slope: float) -> F32:
    """``square * max(x, 0) ** 2 + bend * (e ** m - 1 - m) + slope * x`` with ``m = min(x, 0)``.

    Source: Huang and Schlag 2024 (xIELU), whose alpha_p, alpha_n and beta they are.
    """
    above, below = np.maximum(x, 0), np.minimum(x, 0).astype(np.float64)
    curve = np.float32(square) * above * above + np.float32(slope) * x
    return np.asarray(curve + np.float32(bend) * (np.expm1(below) - below), np.float32)


def _examples() -> list[Example]:
    examples = []
    for scale in (0.1, 1.0, 40.0):
        x = np.float32(scale) * normal((3, 70), 1)
        x[0, :3] = -300, 300, 0
        examples.append(Example({"x": x}, {"square": 0.8, "bend": 0.7, "slope": 0.5}))
        examples.append(Example({"x": x[1:]}, {"square": 2.5, "bend": 1.5, "slope": -0.25}))
    return examples


OP = Op(
    inputs=(rows("x", "width"),),
    outputs=(rows("out", "width"),),
    define=xielu,
    attributes={"square": Attribute(float), "bend": Attribute(float), "slope": Attribute(float)},
    model_sizes={"intermediate_size": "width"},
    tolerance=2e-6,
    examples=_examples,
)
