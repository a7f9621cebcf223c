"""GELU by a hyperbolic tangent (Hendrycks and Gimpel 2016, section 2), which Gemma has.

``x / 2 * (1 + tanh(z)) = x * sigmoid(2 z)`` with ``z = sqrt(2 / pi) * (x + 0.044715 x ** 3)``.
"""

from __future__ import annotations

import math as scalar
from collections.abc import Callable
from typing import Any

import numpy as np

from edgerun.activations.base import F32, Activation, OnnxWriter

LINEAR = 2 * scalar.sqrt(2 / scalar.pi)
CUBIC = 0.044715 * LINEAR


def _define(x: F32) -> F32:
    doubled = np.clip(x * (LINEAR + CUBIC * np.square(x, dtype=np.float64)), -80, None)
    return np.asarray(x / (1 + np.exp(-doubled)), dtype=np.float32)


def _onnx(write: OnnxWriter[Any], x: Any) -> Any:
    cubic = write("Mul", write("Mul", x, x), write.number(CUBIC))
    doubled = write("Mul", x, write("Add", cubic, write.number(LINEAR)))
    return write("Mul", x, write("Sigmoid", doubled))


def _vector(math: Any) -> Callable[[Any], Any]:
    def gelu(x):  # type: ignore[no-untyped-def]
        doubled = x * (math.number(x, LINEAR) + math.number(x, CUBIC) * x * x)
        bounded = math.maximum(doubled, math.number(x, -80))  # the exponential stays finite
        return x / (math.number(x, 1) + math.exp(math.number(x, 0) - bounded))

    return gelu


ACTIVATION = Activation(_define, _onnx, _vector, aliases=("gelu_pytorch_tanh", "gelu_new"))
