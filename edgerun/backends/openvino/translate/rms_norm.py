"""Root-mean-square normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node


def _translate(translation: Translation, node: Node) -> Any:
    ops, weight = translation.ops, translation.segment.array(node.inputs[1])
    x, rows, width = translation.sized(node.inputs[0])
    groups = translation.reshape(x, (rows, width // len(weight), len(weight)))
    mean = ops.reduce_mean(ops.multiply(groups, groups), translation.integers(-1), True)
    root = ops.sqrt(ops.add(mean, translation.constant(np.float32(node.attrs["epsilon"]))))
    scaled = ops.multiply(ops.divide(groups, root), translation.constant(weight))
    return translation.reshape(scaled, (rows, width))


TRANSLATOR = Translator(_translate)
