"""An Add after a linear layer becomes that layer's residual input; other Adds become ``add``."""

from __future__ import annotations

from edgerun.graph.ir import Graph, Node
from edgerun.graph.passes.base import Pass


def fuse_residuals(graph: Graph) -> Graph:
    """Rewrites ``Add(residual, linear(x))`` where nothing else reads the linear's output."""
    producers, consumers = graph.producers(), graph.consumers()
    absorbed: set[str] = set()
    rewritten: dict[str, Node] = {}
    for node in graph.nodes:
        if (
            node.op != "Add"
            or len(node.inputs) != 2
            or any(name in graph.constants for name in node.inputs)
        ):
            continue
        residual, value = node.inputs
        source = producers.get(value)
        readers = consumers.get(value, [])  # this node once, though it may read it twice
        alone = len(readers) == 1 and residual != value and value not in graph.outputs
        if source is None or source.op != "linear" or not alone or len(source.inputs) > 3:
            rewritten[node.name] = node.replace(op="add", attrs={})
            continue
        inputs = (*source.inputs, *("",) * (3 - len(source.inputs)), residual)
        rewritten[node.name] = source.replace(inputs=inputs, outputs=node.outputs)
        absorbed.add(source.name)
    return graph.with_nodes(
        rewritten.get(node.name, node) for node in graph.nodes if node.name not in absorbed
    )


PASS = Pass(70, fuse_residuals)
