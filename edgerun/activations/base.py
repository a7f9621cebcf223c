"""What a file in this folder says of its function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

F32: TypeAlias = NDArray[np.float32]
Value = TypeVar("Value")


class OnnxWriter(Protocol[Value]):
    """Puts ONNX nodes together: the exporter's makes a graph, the pass's a pattern."""

    def __call__(self, op: str, *inputs: Value) -> Value:
        """The output of a node without attributes."""
        ...

    def number(self, value: float) -> Value:
        """A float32 constant of one element."""
        ...


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation function of one value.

    Attributes:
        define: computes it in NumPy, for clarity and not for speed.
        onnx: writes it in ONNX's ops; there is no other form that a pass recognises.
        vector: makes it as a function of a float32 vector, compiled by Numba. It is given the
            module ``kernels/lang/vectormath.py`` and should keep the relative error below 5e-7.
        aliases: further names that checkpoints have for it (``hidden_act``).
    """

    define: Callable[[F32], F32]
    onnx: Callable[[OnnxWriter[Any], Any], Any]
    vector: Callable[[Any], Callable[[Any], Any]]
    aliases: tuple[str, ...] = ()
