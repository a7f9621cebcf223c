"""What depends on how large a row is as a whole: ``match_magnitude`` and ``gaussian_top_k``."""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.graph.attributes import Read, Rules
from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Const, Matcher, Num, Op, Pattern, Var
from edgerun.graph.passes.base import Pass


def _mean(value: Pattern) -> Op:
    return Op("ReduceMean", value, Num(-1), keepdims=1)


def _mean_of_squares(value: Pattern) -> Op:
    return _mean(Op("Mul", value, value))


_OWN = Op("Sqrt", Op("Clip", _mean_of_squares(Var("x")), Const("floor")))
_MATCHED = Op("Mul", Var("x"), Op("Div", Op("Sqrt", _mean_of_squares(Var("like"))), _OWN))
_CENTRED = Op("Sub", Var("x"), _mean(Var("x")))
_CUT = Op("Mul", Op("Sqrt", _mean_of_squares(_CENTRED)), Const("deviations"))
_LARGEST = Op("Relu", Op("Sub", _CENTRED, _CUT))


def fuse_magnitudes(graph: Graph) -> Graph:
    """Rewrites products with a quotient of magnitudes, and what is above so many deviations."""
    matcher = Matcher(graph)
    return graph.with_nodes(_rewrite(node, matcher) for node in graph.nodes)


def _rewrite(node: Node, matcher: Matcher) -> Node:
    if node.op == "Mul":
        match = matcher.match(node.outputs[0], _MATCHED)
        attrs = match and matcher.numbers(match, ("floor",))
        if match and attrs:
            inputs = match["x"], match["like"]
            return node.replace(op="match_magnitude", inputs=inputs, attrs=attrs)
    if node.op == "Relu":
        match = matcher.match(node.outputs[0], _LARGEST)
        attrs = match and matcher.numbers(match, ("deviations",))
        if match and attrs:
            return node.replace(op="gaussian_top_k", inputs=(match["x"],), attrs=attrs)
    return node


# From the operator specifications of ONNX (opset 23).
READS: Mapping[str, Rules] = {"ReduceMean": {"keepdims": Read(int, 1), "noop_with_empty_axes": 0}}
PASS = Pass(48, fuse_magnitudes, READS)
