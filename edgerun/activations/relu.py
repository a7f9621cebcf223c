"""``max(x, 0)``; times what it is made of it is squared ReLU (So et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgerun.activations.base import F32, Activation, OnnxWriter


def _define(x: F32) -> F32:
    return np.maximum(x, np.float32(0))


def _onnx(write: OnnxWriter[Any], x: Any) -> Any:
    return write("Relu", x)


def _vector(math: Any) -> Callable[[Any], Any]:
    def relu(x):  # type: ignore[no-untyped-def]
        return math.maximum(x, math.number(x, 0))

    return relu


ACTIVATION = Activation(_define, _onnx, _vector)
