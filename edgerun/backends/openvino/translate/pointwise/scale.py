"""A value times a number."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node


def _translate(translation: Translation, node: Node) -> Any:
    factor = translation.constant(np.float32(node.attrs["factor"]))
    return translation.ops.multiply(translation.value(node.inputs[0]), factor)


TRANSLATOR = Translator(_translate)
