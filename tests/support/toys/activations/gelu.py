"""``x * sigmoid(1.59577 * (x + 0.044715 * x ** 3))`` (Hendrycks and Gimpel 2016, by tanh)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgerun.activations.base import F32, Activation, OnnxWriter

CUBE, FACTOR = 0.044715, 2 * (2 / np.pi) ** 0.5


def _define(x: F32) -> F32:
    inner = np.float32(FACTOR) * (x + np.float32(CUBE) * x * x * x)
    return np.asarray(x / (1 + np.exp(-np.clip(inner, -80, None))), np.float32)


def _onnx(write: OnnxWriter[Any], x: Any) -> Any:
    cube = write("Mul", write("Mul", x, x), write("Mul", x, write.number(CUBE)))
    inner = write("Mul", write("Add", x, cube), write.number(FACTOR))
    return write("Mul", x, write("Sigmoid", inner))


def _vector(math: Any) -> Callable[[Any], Any]:
    cube, factor = np.float32(CUBE), np.float32(FACTOR)

    def gelu(x):  # type: ignore[no-untyped-def]
        inner = math.number(x, factor) * (x + math.number(x, cube) * x * x * x)
        bounded = math.maximum(inner, math.number(x, -80))
        return x / (math.number(x, 1) + math.exp(math.number(x, 0) - bounded))

    return gelu


ACTIVATION = Activation(_define, _onnx, _vector, aliases=("gelu_pytorch_tanh",))
