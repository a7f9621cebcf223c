"""Embeddings: the host looks the rows up, so that no device holds the table."""

from __future__ import annotations

from typing import Any

from edgerun.backends.openvino.translate.translator import Translator
from edgerun.backends.openvino.translation import Translation
from edgerun.graph.ir import Node
from edgerun.graph.mapped_file import files_of
from edgerun.ops.registry import OPS


def _translate(translation: Translation, node: Node) -> Any:
    table = translation.segment.constants[node.inputs[1]]
    files, look_up = files_of([table]), OPS[node.op].define

    def fill(piece: Any) -> Any:
        for file in files:
            file.check()
        return look_up(piece.ids, table)

    shape = (translation.extent.rows, int(table.shape[1]))
    return translation.feed(node.outputs[0], shape, fill)


TRANSLATOR = Translator(_translate)
