"""The rows whose logits are computed, by their indices, which are an input."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node


def _translate(translation: Translation, node: Node) -> Any:
    logit_rows = translation.extent.logit_rows
    if not logit_rows:
        return None
    indices = translation.feed(
        "logit_rows", (logit_rows,), lambda piece: piece.logit_rows, np.int32
    )
    return translation.ops.gather(
        translation.value(node.inputs[0]), indices, translation.integers(0)
    )


TRANSLATOR = Translator(_translate)
