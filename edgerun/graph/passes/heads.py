"""A row that is added to every head of another becomes ``add_to_heads``."""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.graph.attributes import Rules
from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Const, Matcher, Num, Op, Var
from edgerun.graph.passes.base import Pass

_APART = Op("Reshape", Var("whole"), Const("apart"))
_SUM = Op("Reshape", Op("Add", _APART, Op("Unsqueeze", Var("row"), Num(2))), Const("joined"))


def fuse_sums_of_heads(graph: Graph) -> Graph:
    """Rewrites ``[0, 0, heads, width]`` plus ``[.., .., 1, width]``, joined again."""
    matcher = Matcher(graph)
    return graph.with_nodes(_rewrite(node, matcher) for node in graph.nodes)


def _rewrite(node: Node, matcher: Matcher) -> Node:
    match = matcher.match(node.outputs[0], _SUM) if node.op == "Reshape" else None
    if match is None:
        return node
    apart, joined = (
        matcher.graph.array(match[name]).reshape(-1).tolist() for name in ("apart", "joined")
    )
    if len(apart) != 4 or apart[:2] != [0, 0] or joined != [0, 0, apart[2] * apart[3]]:
        return node
    inputs = match["whole"], match["row"]
    return node.replace(op="add_to_heads", inputs=inputs, attrs={"heads": apart[2]})


# From the operator specifications of ONNX (opset 23).
READS: Mapping[str, Rules] = {"Reshape": {"allowzero": 0}}
PASS = Pass(45, fuse_sums_of_heads, READS)
