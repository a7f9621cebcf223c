"""The normal distribution function by a hyperbolic tangent; see ``gelu_tanh.py``.

``(1 + tanh(z)) / 2 = sigmoid(2 z)``, which times what it is made of is GELU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgerun.activations.base import F32, Activation, OnnxWriter
from edgerun.activations.gelu_tanh import CUBIC, LINEAR


def _define(x: F32) -> F32:
    doubled = np.clip(x * (LINEAR + CUBIC * np.square(x, dtype=np.float64)), -80, None)
    return np.asarray(1 / (1 + np.exp(-doubled)), dtype=np.float32)


def _onnx(write: OnnxWriter[Any], x: Any) -> Any:
    cubic = write("Mul", write("Mul", x, x), write.number(CUBIC))
    return write("Sigmoid", write("Mul", x, write("Add", cubic, write.number(LINEAR))))


def _vector(math: Any) -> Callable[[Any], Any]:
    def normal_cdf_tanh(x):  # type: ignore[no-untyped-def]
        return math.sigmoid(x * (math.number(x, LINEAR) + math.number(x, CUBIC) * x * x))

    return normal_cdf_tanh


ACTIVATION = Activation(_define, _onnx, _vector)
