"""A product with the number 2 becomes ``double``."""

from __future__ import annotations

from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Matcher, Num, Op, Var
from edgerun.graph.passes.base import Pass

_FORM = Op("Mul", Var("x"), Num(2))


def fuse_double(graph: Graph) -> Graph:
    """Rewrites ``x * 2``."""
    matcher = Matcher(graph)

    def rewrite(node: Node) -> Node:
        match = matcher.match(node.outputs[0], _FORM)
        return node.replace(op="double", inputs=(match["x"],)) if match is not None else node

    return graph.with_nodes(rewrite(node) for node in graph.nodes)


PASS = Pass(15, fuse_double)
