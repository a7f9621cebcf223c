"""The rows whose logits are wanted, by their indices, which are an input."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node


def _translate(translation: Translation, node: Node) -> Any:
    wanted = translation.extent.wanted
    if not wanted:
        return None
    places = translation.feed("logit_rows", (wanted,), lambda piece: piece.wanted, np.int32)
    return translation.ops.gather(
        translation.value(node.inputs[0]), places, translation.integers(0)
    )


TRANSLATOR = Translator(_translate)
