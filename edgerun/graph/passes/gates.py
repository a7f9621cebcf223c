"""The product of every file in ``activations/``, ``activation(gate) * up``, becomes ``gate``.

Where a gate is a head's, and multiplies all of it, the product becomes ``gate_heads``.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.activations.registry import ACTIVATIONS
from edgerun.graph.attributes import Rules
from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Const, Matcher, Num, Op, PatternWriter, Var
from edgerun.graph.passes.base import Pass

_FORMS = {
    name: activation.onnx_product(PatternWriter(), Var("gate"), Var("up"))
    for name, activation in ACTIVATIONS.items()
}
_APART, _LAST = Op("Reshape", Var("up"), Const("apart")), Num(3)
_OF_HEADS = {
    name: Op("Mul", Op("Unsqueeze", activation.onnx(PatternWriter(), Var("gate")), _LAST), _APART)
    for name, activation in ACTIVATIONS.items()
}


def fuse_gates(graph: Graph) -> Graph:
    """Rewrites gated activations."""
    matcher = Matcher(graph)
    return graph.with_nodes(_rewrite(node, matcher) for node in graph.nodes)


def _rewrite(node: Node, matcher: Matcher) -> Node:
    if node.op == "Reshape":
        return _of_heads(node, matcher)
    if node.op != "Mul" or len({*node.inputs}) == 1:  # a square is within an activation
        return node
    for activation, form in _FORMS.items():
        match = matcher.match(node.outputs[0], form)
        if match is not None:
            inputs = (match["gate"], match["up"])
            return node.replace(op="gate", inputs=inputs, attrs={"activation": activation})
    return node


def _of_heads(node: Node, matcher: Matcher) -> Node:
    """Rewrites ``[.., .., heads, 1]`` times ``[0, 0, heads, width]``, joined again."""
    for activation, form in _OF_HEADS.items():
        match = matcher.match(node.outputs[0], Op("Reshape", form, Const("joined")))
        if match is None:
            continue
        apart, joined = (
            matcher.graph.array(match[name]).reshape(-1).tolist() for name in ("apart", "joined")
        )
        if len(apart) != 4 or apart[:2] != [0, 0] or joined != [0, 0, apart[2] * apart[3]]:
            continue
        attributes = {"heads": apart[2], "head_dim": apart[3], "activation": activation}
        return node.replace(op="gate_heads", inputs=(match["gate"], match["up"]), attrs=attributes)
    return node


# From the operator specifications of ONNX (opset 23).
READS: Mapping[str, Rules] = {"Reshape": {"allowzero": 0}}
PASS = Pass(60, fuse_gates, READS)
