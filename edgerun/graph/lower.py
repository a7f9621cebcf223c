"""An ONNX graph becomes one of our ops, or is refused."""

from __future__ import annotations

from dataclasses import replace

from edgerun.graph.attributes import read_attributes
from edgerun.graph.check import check
from edgerun.graph.ir import Graph
from edgerun.graph.passes.registry import ATTRIBUTES, PASSES


def lower(graph: Graph) -> Graph:
    """Applies all passes, and checks what they made.

    Returns:
        a graph of the ops in ``ops/`` that fits together, with the shapes of all its values.

    Raises:
        BundleError: something is missing, of another type or size, or contradicts the rest.
        UnsupportedError: a node is none of our ops and nothing that a pass makes one of.
    """
    graph = read_attributes(graph, ATTRIBUTES)
    for step in PASSES:
        graph = step.rewrite(graph)
    return replace(graph, shapes=check(graph))
