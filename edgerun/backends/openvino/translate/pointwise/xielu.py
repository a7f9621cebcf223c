"""An activation whose curve is a model's own."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node


def _translate(translation: Translation, node: Node) -> Any:
    ops, x = translation.ops, translation.value(node.inputs[0])
    square, bend, slope = (
        translation.constant(np.float32(node.attrs[name])) for name in ("square", "bend", "slope")
    )
    above = ops.relu(x)
    curve = ops.multiply(ops.multiply(above, above), square)
    curve = ops.add(curve, ops.multiply(ops.subtract(ops.elu(x, 1.0), x), bend))
    return ops.add(curve, ops.multiply(x, slope))


TRANSLATOR = Translator(_translate)
