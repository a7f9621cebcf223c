"""Sums of a value's heads and a row."""

from __future__ import annotations

from typing import Any

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node


def _translate(translation: Translation, node: Node) -> Any:
    whole, rows, width = translation.sized(node.inputs[0])
    heads = node.attrs["heads"]
    apart = translation.reshape(whole, (rows, heads, width // heads))
    row = translation.reshape(translation.value(node.inputs[1]), (rows, 1, width // heads))
    return translation.reshape(translation.ops.add(apart, row), (rows, width))


TRANSLATOR = Translator(_translate)
