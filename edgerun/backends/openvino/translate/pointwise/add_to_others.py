"""The sum of a value's parts, but for the first, and of a narrower value."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node


def _translate(translation: Translation, node: Node) -> Any:
    ops, reshape, parts = translation.ops, translation.reshape, node.attrs["parts"]
    row, rows, width = translation.sized(node.inputs[0])
    whole = reshape(translation.value(node.inputs[1]), (rows, parts, width))
    others = np.ones((1, parts, 1), np.float32)
    others[0, 0] = 0
    added = ops.multiply(reshape(row, (rows, 1, width)), translation.constant(others))
    return reshape(ops.add(whole, added), (rows, parts * width))


TRANSLATOR = Translator(_translate)
