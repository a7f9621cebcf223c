"""What residual streams are behind a layer, which has seen the first of them alone."""

from __future__ import annotations

from typing import Any

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node


def _translate(translation: Translation, node: Node) -> tuple[Any, Any]:
    ops, reshape, parts = translation.ops, translation.reshape, node.attrs["parts"]
    activated, rows, width = translation.sized(node.inputs[0])
    predictions = reshape(translation.value(node.inputs[1]), (rows, parts, width))
    coefs = reshape(translation.value(node.inputs[2]), (rows, parts, 1))
    first_part = (predictions, translation.integers(0), translation.integers(1))
    change = reshape(ops.subtract(activated, ops.gather(*first_part)), (rows, 1, width))
    streams = ops.add(predictions, ops.multiply(change, coefs))
    first = ops.gather(streams, *first_part[1:])
    if any(node.inputs[3:]):
        scale = translation.constant(translation.segment.array(node.inputs[3]))
        first = ops.multiply(first, scale)
    return reshape(streams, (rows, parts * width)), first


TRANSLATOR = Translator(_translate)
