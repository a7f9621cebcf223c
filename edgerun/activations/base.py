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
class Function:
    """A function of one value.

    Attributes:
        define: computes it in NumPy, for clarity and not for speed.
        onnx: writes it in ONNX's ops; there is no other form that a pass recognises.
        vector: makes it as a function of a float32 vector, compiled by Numba. It is given the
            module ``kernels/lang/vectormath.py`` and should keep the error below 5e-7 of the
            result, or where the result is close to zero below 1e-8.
    """

    define: Callable[[F32], F32]
    onnx: Callable[[OnnxWriter[Any], Any], Any]
    vector: Callable[[Any], Callable[[Any], Any]]


def _same(x: Any) -> Any:
    return x


UNCHANGED = Function(_same, lambda write, x: x, lambda math: _same)


@dataclass(frozen=True, slots=True)
class Activation(Function):
    """What a gated feed-forward network multiplies: ``activation(gate) * up(up)``.

    Attributes:
        aliases: further names that checkpoints have for it (``hidden_act``).
        up: what the other factor goes through, nothing as a rule.
    """

    aliases: tuple[str, ...] = ()
    up: Function = UNCHANGED

    def product(self, gate: F32, up: F32) -> F32:
        """Computes the product in NumPy."""
        return self.define(gate) * self.up.define(up)

    def onnx_product(self, write: OnnxWriter[Any], gate: Any, up: Any) -> Any:
        """Writes the product in ONNX's ops."""
        return write("Mul", self.onnx(write, gate), self.up.onnx(write, up))
