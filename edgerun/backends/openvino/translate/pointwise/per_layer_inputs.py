"""What all layers are given beside the residual stream, a part of a row for each."""

from __future__ import annotations

from typing import Any

from edgerun.backends.openvino.translate.rms_norm import normalised
from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node


def _translate(translation: Translation, node: Node) -> Any:
    x, tokens, weight = node.inputs
    return translation.ops.add(
        normalised(translation, x, weight, node.attrs["epsilon"]), translation.value(tokens)
    )


TRANSLATOR = Translator(_translate)
