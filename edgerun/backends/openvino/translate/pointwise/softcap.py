"""Values that cannot leave a range."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node


def _translate(translation: Translation, node: Node) -> Any:
    ops, bound = translation.ops, translation.constant(np.float32(node.attrs["bound"]))
    return ops.multiply(ops.tanh(ops.divide(translation.value(node.inputs[0]), bound)), bound)


TRANSLATOR = Translator(_translate)
