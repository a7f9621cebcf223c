"""An activation whose curve is a model's own becomes ``xielu``."""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.graph.attributes import Read, Rules
from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Const, Matcher, Op, Var
from edgerun.graph.passes.base import Pass

_SQUARE = Op("Mul", Op("Mul", Op("Relu", Var("x")), Op("Relu", Var("x"))), Const("square"))
_BEND = Op("Mul", Op("Sub", Op("Elu", Var("x"), alpha=1.0), Var("x")), Const("bend"))
_CURVE = Op("Add", Op("Add", _SQUARE, _BEND), Op("Mul", Var("x"), Const("slope")))


def fuse_xielu(graph: Graph) -> Graph:
    """Rewrites sums of a square above 0, a bend below it, and a line."""
    matcher = Matcher(graph)
    return graph.with_nodes(_rewrite(node, matcher) for node in graph.nodes)


def _rewrite(node: Node, matcher: Matcher) -> Node:
    match = matcher.match(node.outputs[0], _CURVE) if node.op == "Add" else None
    attrs = match and matcher.numbers(match, ("square", "bend", "slope"))
    return node.replace(op="xielu", inputs=(match["x"],), attrs=attrs) if match and attrs else node


# From the operator specifications of ONNX (opset 23).
READS: Mapping[str, Rules] = {"Elu": {"alpha": Read(float, 1.0)}}
PASS = Pass(51, fuse_xielu, READS)
