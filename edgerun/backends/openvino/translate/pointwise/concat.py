"""Rows of two values as one, one behind the other."""

from __future__ import annotations

from typing import Any

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node


def _translate(translation: Translation, node: Node) -> Any:
    return translation.ops.concat([translation.value(name) for name in node.inputs], 1)


TRANSLATOR = Translator(_translate)
