"""``log(1 + e ** x)`` (Dugas et al. 2001), by which Laguna gates attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgerun.activations.base import F32, Activation, OnnxWriter


def _define(x: F32) -> F32:
    return np.asarray(np.logaddexp(0, x.astype(np.float64)), dtype=np.float32)


def _onnx(write: OnnxWriter[Any], x: Any) -> Any:
    return write("Softplus", x)


def _vector(math: Any) -> Callable[[Any], Any]:
    def softplus(x):  # type: ignore[no-untyped-def]
        return math.softplus(x)

    return softplus


ACTIVATION = Activation(_define, _onnx, _vector)
