"""Gates of heads."""

from __future__ import annotations

from typing import Any

from edgerun.activations.registry import ACTIVATIONS
from edgerun.backends.openvino.translate.gate import Writer, supports_activation
from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node


def _translate(translation: Translation, node: Node) -> Any:
    whole, rows, width = translation.sized(node.inputs[1])
    heads, head_dim = node.attrs["heads"], node.attrs["head_dim"]
    activation = ACTIVATIONS[node.attrs["activation"]]
    gate = activation.onnx(Writer(translation), translation.value(node.inputs[0]))
    apart = translation.reshape(whole, (rows, heads, head_dim))
    product = translation.ops.multiply(translation.reshape(gate, (rows, heads, 1)), apart)
    return translation.reshape(product, (rows, width))


TRANSLATOR = Translator(_translate, supports_activation)
