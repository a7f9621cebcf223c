"""Normalisation by mean and deviation."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgerun.backends.openvino.translate.magnitude import largest_magnitude, without_mean
from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node


def _translate(translation: Translation, node: Node) -> Any:
    x, weight, bias = (*node.inputs, "")[:3]
    ops, array = translation.ops, translation.segment.array
    centred = without_mean(translation, translation.value(x))
    epsilon = translation.constant(np.float32(node.attrs["epsilon"]))
    if translation.is_half:
        scale = largest_magnitude(translation, centred)
        centred = ops.divide(centred, scale)
        epsilon = ops.divide(ops.divide(epsilon, scale), scale)
    variance = ops.reduce_mean(ops.multiply(centred, centred), translation.integers(-1), True)
    normalised = ops.divide(centred, ops.sqrt(ops.add(variance, epsilon)))
    out = ops.multiply(normalised, translation.constant(array(weight)))
    return ops.add(out, translation.constant(array(bias))) if bias else out


TRANSLATOR = Translator(_translate)
