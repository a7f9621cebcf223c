"""A value that is made as large as another."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgerun.backends.openvino.translate.magnitude import root_mean_square
from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node


def _translate(translation: Translation, node: Node) -> Any:
    ops, (x, like) = translation.ops, (translation.value(name) for name in node.inputs)
    least = translation.constant(np.float32(node.attrs["floor"] ** 0.5))
    own = ops.maximum(root_mean_square(translation, x), least)
    return ops.multiply(x, ops.divide(root_mean_square(translation, like), own))


TRANSLATOR = Translator(_translate)
