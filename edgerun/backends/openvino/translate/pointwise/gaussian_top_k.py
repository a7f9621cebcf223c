"""A value of which the largest elements are left, as many as a normal distribution says."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgerun.backends.openvino.translate.magnitude import root_mean_square, without_mean
from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node


def _translate(translation: Translation, node: Node) -> Any:
    ops = translation.ops
    centred = without_mean(translation, translation.value(node.inputs[0]))
    deviations = translation.constant(np.float32(node.attrs["deviations"]))
    cut = ops.multiply(root_mean_square(translation, centred), deviations)
    return ops.relu(ops.subtract(centred, cut))


TRANSLATOR = Translator(_translate)
