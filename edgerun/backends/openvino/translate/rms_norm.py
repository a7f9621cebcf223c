"""Root-mean-square normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgerun.backends.openvino.translate.magnitude import largest_magnitude
from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node


def normalised(translation: Translation, name: str, weight_name: str, epsilon_value: float) -> Any:
    """A value of which each part as long as the weight is normalised, and multiplied with it."""
    ops, weight = translation.ops, translation.segment.array(weight_name)
    x, rows, width = translation.sized(name)
    groups = translation.reshape(x, (rows, width // len(weight), len(weight)))
    epsilon = translation.constant(np.float32(epsilon_value))
    if translation.is_half:
        groups, epsilon = _scaled(translation, groups, epsilon)
    mean = ops.reduce_mean(ops.multiply(groups, groups), translation.integers(-1), True)
    root = ops.sqrt(ops.add(mean, epsilon))
    weighed = ops.multiply(ops.divide(groups, root), translation.constant(weight))
    return translation.reshape(weighed, (rows, width))


def _scaled(translation: Translation, groups: Any, epsilon: Any) -> tuple[Any, Any]:
    """The same norm of smaller numbers."""
    ops, scale = translation.ops, largest_magnitude(translation, groups)
    return ops.divide(groups, scale), ops.divide(ops.divide(epsilon, scale), scale)


def _translate(translation: Translation, node: Node) -> Any:
    x, weight = node.inputs
    return normalised(translation, x, weight, node.attrs["epsilon"])


TRANSLATOR = Translator(_translate)
