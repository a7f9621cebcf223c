"""``max(x, 0) ** 2`` (So et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgerun.activations.base import F32, Activation, OnnxWriter


def _define(x: F32) -> F32:
    positive = np.maximum(x, np.float32(0))
    return positive * positive


def _onnx(write: OnnxWriter[Any], x: Any) -> Any:
    positive = write("Relu", x)
    return write("Mul", positive, positive)


def _vector(math: Any) -> Callable[[Any], Any]:
    def relu2(x):  # type: ignore[no-untyped-def]
        positive = math.maximum(x, math.number(x, 0))
        return positive * positive

    return relu2


ACTIVATION = Activation(_define, _onnx, _vector)
