"""The product of every file in ``activations/``, ``activation(gate) * up``, becomes ``gate``."""

from __future__ import annotations

from edgerun.activations.registry import ACTIVATIONS
from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Matcher, PatternWriter, Var
from edgerun.graph.passes.base import Pass

_FORMS = {
    name: activation.onnx_product(PatternWriter(), Var("gate"), Var("up"))
    for name, activation in ACTIVATIONS.items()
}


def fuse_gates(graph: Graph) -> Graph:
    """Rewrites gated activations."""
    matcher = Matcher(graph)
    return graph.with_nodes(_rewrite(node, matcher) for node in graph.nodes)


def _rewrite(node: Node, matcher: Matcher) -> Node:
    if node.op != "Mul" or len({*node.inputs}) == 1:  # a square is within an activation
        return node
    for activation, form in _FORMS.items():
        match = matcher.match(node.outputs[0], form)
        if match is not None:
            inputs = (match["gate"], match["up"])
            return node.replace(op="gate", inputs=inputs, attrs={"activation": activation})
    return node


PASS = Pass(60, fuse_gates)
