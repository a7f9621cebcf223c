"""Inputs of all layers, and the part of one, become ``per_layer_inputs`` and ``row_part``."""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.graph.attributes import Read, Rules
from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Const, Matcher, Op, Var
from edgerun.graph.passes.base import Pass

_NORMED = Op("rms_norm", Op("Reshape", Var("x"), Const("parts")), Const("weight"))
_SUM = Op("Add", _NORMED, Op("Reshape", Var("tokens"), Const("same")))
_PART = Op("Gather", Var("sum"), Const("index"), axis=2)


def fuse_per_layer_inputs(graph: Graph) -> Graph:
    """Rewrites norms of parts ``[0, 0, parts, width]`` plus others, and what gathers a part."""
    matcher = Matcher(graph)
    sums = {node.outputs[0]: new for node in graph.nodes if (new := _sum(node, matcher))}
    if not sums:
        return graph
    return graph.with_nodes(
        sums.get(node.outputs[0]) or _part(node, matcher, sums) for node in graph.nodes
    )


def _sum(node: Node, matcher: Matcher) -> Node | None:
    match = matcher.match(node.outputs[0], _SUM) if node.op == "Add" else None
    if match is None:
        return None
    shapes = [matcher.graph.array(match[name]).reshape(-1).tolist() for name in ("parts", "same")]
    weight = matcher.graph.array(match["weight"])
    if shapes[0] != shapes[1] or shapes[0][:2] != [0, 0] or shapes[0][3:] != [*weight.shape]:
        return None
    norm = matcher.producers[node.inputs[0]]
    attrs = {"parts": shapes[0][2], "epsilon": norm.attrs["epsilon"]}
    inputs = match["x"], match["tokens"], match["weight"]
    return node.replace(op="per_layer_inputs", inputs=inputs, attrs=attrs)


def _part(node: Node, matcher: Matcher, sums: Mapping[str, Node]) -> Node:
    match = matcher.match(node.outputs[0], _PART) if node.op == "Gather" else None
    if match is None or match["sum"] not in sums:
        return node
    total, index = sums[match["sum"]], matcher.graph.array(match["index"])
    parts, (width,) = total.attrs["parts"], matcher.graph.array(total.inputs[2]).shape
    if index.ndim or not 0 <= int(index) < parts:
        return node
    attrs = {"parts": parts, "width": width, "number": int(index) + 1}
    return node.replace(op="row_part", inputs=(match["sum"],), attrs=attrs)


# From the operator specifications of ONNX (opset 23).
READS: Mapping[str, Rules] = {"Gather": {"axis": Read(int, 0)}, "Reshape": {"allowzero": 0}}
PASS = Pass(46, fuse_per_layer_inputs, READS)
