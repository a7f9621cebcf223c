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
    normalise = _of_halves if translation.is_half else _of_floats
    groups, epsilon = node.attrs["groups"], node.attrs["epsilon"]
    if groups == 1:
        normalised = normalise(translation, translation.value(x), epsilon)
    else:
        value, rows, width = translation.sized(x)
        parts = translation.reshape(value, (rows, groups, width // groups))
        parts = normalise(translation, parts, epsilon)
        normalised = translation.reshape(parts, (rows, width))
    out = ops.multiply(normalised, translation.constant(array(weight)))
    return ops.add(out, translation.constant(array(bias))) if bias else out


def _of_floats(translation: Translation, x: Any, epsilon: float) -> Any:
    """By its own op, which OpenVINO makes of others, too, and of those here fails to."""
    axes = translation.ops.constant(np.array([-1], np.int64))
    return translation.ops.mvn(x, axes, True, epsilon, "inside_sqrt")


def _of_halves(translation: Translation, x: Any, epsilon: float) -> Any:
    """The same norm of smaller numbers."""
    ops, centred = translation.ops, without_mean(translation, x)
    scale = largest_magnitude(translation, centred)
    centred = ops.divide(centred, scale)
    added = translation.constant(np.float32(epsilon))
    added = ops.divide(ops.divide(added, scale), scale)
    variance = ops.reduce_mean(ops.multiply(centred, centred), translation.integers(-1), True)
    return ops.divide(centred, ops.sqrt(ops.add(variance, added)))


TRANSLATOR = Translator(_translate)
