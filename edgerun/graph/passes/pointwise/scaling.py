"""A value times a number becomes ``scale``, and one that is kept in a range ``softcap``."""

from __future__ import annotations

from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Const, Matcher, Op, Var
from edgerun.graph.passes.base import Pass

_BOUNDED = Op("Mul", Op("Tanh", Op("Div", Var("x"), Const("inner"))), Const("outer"))
_SCALED = Op("Mul", Var("x"), Const("factor"))


def fuse_scaling(graph: Graph) -> Graph:
    """Rewrites products with constants of one element that are in no other form, and ``Tanh``."""
    matcher = Matcher(graph)
    rewrites = {"Mul": _product, "Tanh": _bounded}
    return graph.with_nodes(
        rewrites[node.op](node, matcher) if node.op in rewrites else node for node in graph.nodes
    )


def _bounded(node: Node, matcher: Matcher) -> Node:
    """A bound of 1, unless it belongs to a form with another; then nothing reads it."""
    return node.replace(op="softcap", attrs={"bound": 1.0})


def _product(node: Node, matcher: Matcher) -> Node:
    match = matcher.match(node.outputs[0], _BOUNDED)
    if match is not None:
        bounds = matcher.numbers(match, ("inner", "outer"))
        if bounds is None or bounds["inner"] != bounds["outer"]:
            return node
        return node.replace(op="softcap", inputs=(match["x"],), attrs={"bound": bounds["inner"]})
    match = matcher.match(node.outputs[0], _SCALED)
    factors = None if match is None else matcher.numbers(match, ("factor",))
    if match is None or factors is None or match["x"] in matcher.graph.constants:
        return node
    return node.replace(op="scale", inputs=(match["x"],), attrs=factors)


PASS = Pass(75, fuse_scaling)
