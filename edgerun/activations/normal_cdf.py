"""The normal distribution function; times what it is of it is GELU (Hendrycks and Gimpel 2016)."""

from __future__ import annotations

import math as scalar
from collections.abc import Callable
from typing import Any

import numpy as np

from edgerun.activations.base import F32, Activation, OnnxWriter

_ROOT = scalar.sqrt(0.5)
_complement = np.frompyfunc(scalar.erfc, 1, 1)


def _define(x: F32) -> F32:
    return np.asarray(_complement(-_ROOT * x.astype(np.float64)) / 2, dtype=np.float32)


def _onnx(write: OnnxWriter[Any], x: Any) -> Any:
    error = write("Erf", write("Mul", x, write.number(_ROOT)))
    return write("Mul", write("Add", error, write.number(1)), write.number(0.5))


def _vector(math: Any) -> Callable[[Any], Any]:
    def normal_cdf(x):  # type: ignore[no-untyped-def]
        return math.number(x, 0.5) * math.erfc(math.number(x, -_ROOT) * x)

    return normal_cdf


ACTIVATION = Activation(_define, _onnx, _vector)
