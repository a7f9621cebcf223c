"""What a file in this folder says of the op that it is named after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgerun.backends.base import Support
from edgerun.backends.openvino.translation import Translate
from edgerun.graph.ir import Graph, Node


def _any_node(graph: Graph, node: Node) -> Support:
    return Support(True)


@dataclass(frozen=True, slots=True)
class Translator:
    """How OpenVINO runs an op.

    Attributes:
        translate: returns OpenVINO's output for the one of a node, or a tuple where it has several;
            None if nothing reads it.
        supports: whether a node can be translated.
    """

    translate: Translate
    supports: Callable[[Graph, Node], Support] = _any_node
