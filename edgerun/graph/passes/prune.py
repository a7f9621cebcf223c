"""Removes what does not contribute to the outputs."""

from __future__ import annotations

from edgerun.graph.ir import Graph
from edgerun.graph.passes.base import Pass


def prune(graph: Graph) -> Graph:
    """Keeps the nodes that the outputs depend on, in their order."""
    needed = set(graph.outputs)
    nodes = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            nodes.append(node)
            needed.update(node.inputs)
    pruned = graph.with_nodes(reversed(nodes))
    pruned.inputs = [name for name in graph.inputs if name in needed]
    return pruned


PASS = Pass(90, prune)
