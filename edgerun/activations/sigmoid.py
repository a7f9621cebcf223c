"""``sigmoid(x)``, by which attention is gated (Qiu et al. 2025)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgerun.activations.base import F32, Activation, OnnxWriter


def _define(x: F32) -> F32:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -80, None))), dtype=np.float32)


def _onnx(write: OnnxWriter[Any], x: Any) -> Any:
    return write("Sigmoid", x)


def _vector(math: Any) -> Callable[[Any], Any]:
    def sigmoid(x):  # type: ignore[no-untyped-def]
        bounded = math.maximum(x, math.number(x, -80))  # the exponential stays finite
        return math.number(x, 1) / (math.number(x, 1) + math.exp(math.number(x, 0) - bounded))

    return sigmoid


ACTIVATION = Activation(_define, _onnx, _vector)
