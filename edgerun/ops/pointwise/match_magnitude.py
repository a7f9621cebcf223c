"""A value that is made as large as another."""

from __future__ import annotations

import numpy as np

from edgerun.ops.base import F32, SMALLEST_NORMAL, Attribute, Example, Op, normal, rows


@np.errstate(invalid="ignore")  # an infinite element becomes NaN
def match_magnitude(x: F32, like: F32, *, floor: float) -> F32:
    """Rows of ``x`` with the root mean square of those of ``like``.

    The mean of the squares of ``x`` counts as ``floor`` where it is less.
    """
    own = np.maximum(_mean_of_squares(x), np.float32(floor))
    return np.asarray(x * (np.sqrt(_mean_of_squares(like)) / np.sqrt(own)))


def _mean_of_squares(x: F32) -> F32:
    return np.asarray(np.mean(x * x, axis=1, keepdims=True, dtype=np.float32))


def _examples() -> list[Example]:
    examples = []
    for shape in [(1, 7), (3, 64), (2, 130)]:
        x = normal(shape, 1)
        x[-1] *= 1e-4
        inputs = {"x": x, "like": 7 * normal(shape, 2)}
        examples.append(Example(inputs, {"floor": 1e-5}))
    return examples


OP = Op(
    inputs=(rows("x", "width"), rows("like", "width")),
    outputs=(rows("out", "width"),),
    define=match_magnitude,
    attributes={"floor": Attribute(float, SMALLEST_NORMAL)},
    tolerance=1e-6,
    examples=_examples,
)
