"""Sums."""

from __future__ import annotations

from typing import Any

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node


def _translate(translation: Translation, node: Node) -> Any:
    a, b = (translation.value(name) for name in node.inputs)
    return translation.ops.add(a, b)


TRANSLATOR = Translator(_translate)
