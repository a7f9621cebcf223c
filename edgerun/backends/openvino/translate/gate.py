"""The gate of a feed-forward layer, whose activation function says itself what it is in ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgerun.activations.registry import ACTIVATIONS
from edgerun.backends.base import Support
from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Graph, Node

# ONNX's ops that activation functions are made of, by the names of OpenVINO's.
OPERATIONS = {
    "Add": "add",
    "Div": "divide",
    "Erf": "erf",
    "Exp": "exp",
    "Max": "maximum",
    "Min": "minimum",
    "Mul": "multiply",
    "Neg": "negative",
    "Pow": "power",
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
    "Sqrt": "sqrt",
    "Sub": "subtract",
    "Tanh": "tanh",
}


class Writer:
    """Writes a function in OpenVINO's ops."""

    def __init__(self, translation: Translation) -> None:
        """Takes the network that is written."""
        self._translation = translation

    def __call__(self, op: str, *inputs: Any) -> Any:
        """The output of an op of ONNX's."""
        return getattr(self._translation.ops, OPERATIONS[op])(*inputs)

    def number(self, value: float) -> Any:
        """A constant."""
        return self._translation.constant(np.float32(value))


class _Reader:
    """Collects the ops of a function."""

    def __init__(self) -> None:
        self.ops: list[str] = []

    def __call__(self, op: str, *inputs: None) -> None:
        self.ops.append(op)

    def number(self, value: float) -> None:
        return None


def _translate(translation: Translation, node: Node) -> Any:
    gate, up = (translation.value(name) for name in node.inputs)
    activation = ACTIVATIONS[node.attrs["activation"]]
    return activation.onnx_product(Writer(translation), gate, up)


def supports_activation(graph: Graph, node: Node) -> Support:
    """Whether there is a translation of a node's activation function."""
    reader = _Reader()
    ACTIVATIONS[node.attrs["activation"]].onnx_product(reader, None, None)
    unknown = [op for op in reader.ops if op not in OPERATIONS]
    return Support(not unknown, f"no translation of {', '.join(unknown)}" if unknown else "")


TRANSLATOR = Translator(_translate, supports_activation)
