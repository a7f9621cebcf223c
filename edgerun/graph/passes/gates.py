"""``silu(gate) * up`` and ``relu(gate)**2 * up`` become ``gate``."""

from __future__ import annotations

from dataclasses import replace

from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Matcher, Op, Var

_SILU = Op("Mul", Var("gate"), Op("Sigmoid", Var("gate")))
_RELU = Op("Relu", Var("gate"))
_FORMS = {
    "silu": Op("Mul", _SILU, Var("up")),
    "relu2": Op("Mul", Op("Mul", _RELU, _RELU), Var("up")),
}


def fuse_gates(graph: Graph) -> Graph:
    """Rewrites gated activations."""
    matcher = Matcher(graph)
    return graph.with_nodes(_rewrite(node, matcher) for node in graph.nodes)


def _rewrite(node: Node, matcher: Matcher) -> Node:
    if node.op != "Mul":
        return node
    for activation, form in _FORMS.items():
        found = matcher.match(node.outputs[0], form)
        if found is not None:
            inputs = (found["gate"], found["up"])
            return replace(node, op="gate", inputs=inputs, attrs={"activation": activation})
    return node
