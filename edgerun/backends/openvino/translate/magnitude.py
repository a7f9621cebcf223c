"""How large elements of the last axis are.

In half precision elements of 256 or more have no square, and models have some of thousands: there
all is computed of numbers that were divided by the largest. What overflows makes zeros of a row
without a word.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgerun.backends.openvino.translation import Translation

SMALLEST = np.float32(
    1e-2
)  # of what is divided by: below it epsilons count, which must not overflow


def largest_magnitude(translation: Translation, x: Any) -> Any:
    """The largest magnitude of the last axis, at least ``SMALLEST``."""
    ops = translation.ops
    largest = ops.reduce_max(ops.abs(x), translation.integers(-1), True)
    return ops.maximum(largest, translation.constant(SMALLEST))


def root_mean_square(translation: Translation, x: Any) -> Any:
    """The root of the mean of squares of the last axis."""
    ops, axis = translation.ops, translation.integers(-1)
    if not translation.is_half:
        return ops.sqrt(ops.reduce_mean(ops.multiply(x, x), axis, True))
    largest = largest_magnitude(translation, x)
    scaled = ops.divide(x, largest)
    mean = ops.reduce_mean(ops.multiply(scaled, scaled), axis, True)
    return ops.multiply(ops.sqrt(mean), largest)


def without_mean(translation: Translation, x: Any) -> Any:
    """A value less the mean of its last axis."""
    ops, axis = translation.ops, translation.integers(-1)
    if not translation.is_half:
        return ops.subtract(x, ops.reduce_mean(x, axis, True))
    largest = largest_magnitude(translation, x)
    mean = ops.reduce_mean(ops.divide(x, largest), axis, True)
    return ops.subtract(x, ops.multiply(mean, largest))
