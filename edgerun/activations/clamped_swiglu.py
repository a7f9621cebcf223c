"""``g * sigmoid(1.702 g) * (u + 1)`` with ``g = min(gate, 7)``, ``u`` up clamped to 7 (gpt-oss)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgerun.activations.base import F32, Activation, Function, OnnxWriter

ALPHA, LIMIT = 1.702, 7.0


def _define(x: F32) -> F32:
    gate = np.minimum(x, np.float32(LIMIT))
    scaled = np.clip(gate * np.float32(ALPHA), -80, None)
    return np.asarray(gate / (1 + np.exp(-scaled)), dtype=np.float32)


def _onnx(write: OnnxWriter[Any], x: Any) -> Any:
    gate = write("Min", x, write.number(LIMIT))
    return write("Mul", gate, write("Sigmoid", write("Mul", gate, write.number(ALPHA))))


def _vector(math: Any) -> Callable[[Any], Any]:
    def gate(x):  # type: ignore[no-untyped-def]
        bounded = math.minimum(x, math.number(x, LIMIT))
        scaled = math.maximum(bounded * math.number(x, ALPHA), math.number(x, -80))
        return bounded / (math.number(x, 1) + math.exp(math.number(x, 0) - scaled))

    return gate


def _define_up(x: F32) -> F32:
    return np.asarray(np.clip(x, -LIMIT, LIMIT) + 1, dtype=np.float32)


def _onnx_up(write: OnnxWriter[Any], x: Any) -> Any:
    bounded = write("Min", write("Max", x, write.number(-LIMIT)), write.number(LIMIT))
    return write("Add", bounded, write.number(1))


def _vector_up(math: Any) -> Callable[[Any], Any]:
    def up(x):  # type: ignore[no-untyped-def]
        bounded = math.minimum(math.maximum(x, math.number(x, -LIMIT)), math.number(x, LIMIT))
        return bounded + math.number(x, 1)

    return up


ACTIVATION = Activation(_define, _onnx, _vector, up=Function(_define_up, _onnx_up, _vector_up))
