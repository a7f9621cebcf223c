"""Norms of groups whose weights differ become ``group_rms_norm``."""

from __future__ import annotations

import numpy as np

from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Const, Matcher, Op, Var
from edgerun.graph.passes.base import Pass

_GROUPS = Op("Reshape", Var("x"), Const("groups"))
_NORMED = Op("Reshape", Op("rms_norm", _GROUPS, Const("ones")), Const("joined"))
_FORM = Op("Mul", _NORMED, Const("weight"))


def fuse_group_norms(graph: Graph) -> Graph:
    """Rewrites norms of groups by ones, put together and multiplied by a weight."""
    matcher = Matcher(graph)
    return graph.with_nodes(
        _rewrite(node, matcher) if node.op == "Mul" else node for node in graph.nodes
    )


def _rewrite(node: Node, matcher: Matcher) -> Node:
    match, graph = matcher.match(node.outputs[0], _FORM), matcher.graph
    if match is None:
        return node
    arrays = [graph.constants[match[name]] for name in ("groups", "joined", "ones", "weight")]
    plain = [each for each in arrays if isinstance(each, np.ndarray)]
    if len(plain) < len(arrays):
        return node
    shape, joined, ones, weight = plain
    size = ones.size
    if not size or weight.size % size or (ones.ndim, weight.ndim) != (1, 1) or np.any(ones != 1):
        return node
    expected = [0, 0, weight.size // size, size]
    if shape.tolist() != expected or joined.tolist() != [0, 0, weight.size]:
        return node
    norm = matcher.producers[matcher.producers[node.inputs[0]].inputs[0]]
    attributes = {"groups": expected[2], "epsilon": norm.attrs["epsilon"]}
    return Node(
        "group_rms_norm", norm.name, (match["x"], match["weight"]), node.outputs, attributes
    )


PASS = Pass(49, fuse_group_norms)
