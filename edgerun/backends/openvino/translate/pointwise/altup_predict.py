"""What residual streams are before a layer, each a sum of all of them."""

from __future__ import annotations

from typing import Any

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node


def _translate(translation: Translation, node: Node) -> Any:
    reshape, parts = translation.reshape, node.attrs["parts"]
    streams, rows, width = translation.sized(node.inputs[0])
    coefs = reshape(translation.value(node.inputs[1]), (rows, parts, parts))
    streams = reshape(streams, (rows, parts, width // parts))
    return reshape(translation.ops.matmul(coefs, streams, False, False), (rows, width))


TRANSLATOR = Translator(_translate)
