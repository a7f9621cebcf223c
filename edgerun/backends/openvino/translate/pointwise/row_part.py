"""One of equal parts of every row."""

from __future__ import annotations

from typing import Any

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node


def _translate(translation: Translation, node: Node) -> Any:
    x, rows, _ = translation.sized(node.inputs[0])
    parts = translation.reshape(x, (rows, node.attrs["parts"], node.attrs["width"]))
    number = translation.integers(node.attrs["number"] - 1)
    return translation.ops.gather(parts, number, translation.integers(1))


TRANSLATOR = Translator(_translate)
