"""Products with constant matrices.

Activations that are rounded a row at a time are part of a trained model, and rounded here as the
definition says. Those rounded by blocks of weights are a runtime's way to be fast: here they stay
as they are, as in OpenVINO itself.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Graph, Node
from edgerun.ops.linear import INT8_MAX, MIN_ABSMAX


def _translate(translation: Translation, node: Node) -> Any:
    ops = translation.ops
    x, weight, bias, residual = (*node.inputs, "", "")[:4]
    value = translation.value(x)
    if node.attrs["activations"] == "int8_row":
        value = _rounded(translation, value)
    out = ops.matmul(value, translation.matrix(weight), False, True)
    others = [translation.constant(translation.segment.array(bias))] if bias else []
    others += [translation.value(residual)] if residual else []
    if bias and residual and _is_sum_alone(translation.segment, residual):
        others = [reduce(ops.add, others)]
    return reduce(ops.add, others, out)


def _is_sum_alone(segment: Graph, residual: str) -> bool:
    """Whether a residual is the sum of another product, which nothing else reads.

    OpenVINO's CPU plug-in (2026.4) dies while it fuses two float32 products, each with a bias, into
    one sum; it does not if the bias of the second is added to the sum of the first.
    """
    source = segment.producers().get(residual)
    return source is not None and source.op == "linear" and len(segment.consumers()[residual]) == 1


def _rounded(translation: Translation, x: Any) -> Any:
    """See ``edgerun.ops.linear.quantize_row``."""
    ops, constant = translation.ops, translation.constant
    largest = ops.reduce_max(ops.abs(x), translation.integers(-1), True)
    factor = ops.divide(constant(INT8_MAX), ops.maximum(largest, constant(MIN_ABSMAX)))
    codes = ops.clamp(ops.round(ops.multiply(x, factor), "half_to_even"), -128.0, 127.0)
    return ops.multiply(codes, ops.divide(constant(np.float32(1)), factor))


TRANSLATOR = Translator(_translate)
