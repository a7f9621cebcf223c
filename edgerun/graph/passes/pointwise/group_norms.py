"""Norms of groups whose weights differ become ``group_rms_norm``, or ``layer_norm`` of groups."""

from __future__ import annotations

import numpy as np

from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Const, Match, Matcher, Op, Var
from edgerun.graph.passes.base import Pass

_GROUPS = Op("Reshape", Var("x"), Const("groups"))
# By what the norm of a group is what that of all groups becomes.
_OF_GROUPS = {"rms_norm": "group_rms_norm", "layer_norm": "layer_norm"}


def _form(norm: str) -> Op:
    normed = Op("Reshape", Op(norm, _GROUPS, Const("ones")), Const("joined"))
    return Op("Mul", normed, Const("weight"))


_FORMS = [_form(norm) for norm in _OF_GROUPS]


def fuse_group_norms(graph: Graph) -> Graph:
    """Rewrites norms of groups by ones, put together and multiplied by a weight."""
    matcher = Matcher(graph)
    return graph.with_nodes(
        _rewrite(node, matcher) if node.op == "Mul" else node for node in graph.nodes
    )


def _rewrite(node: Node, matcher: Matcher) -> Node:
    for form in _FORMS:
        match = matcher.match(node.outputs[0], form)
        if match is not None:
            return _of_groups(node, match, matcher)
    return node


def _of_groups(node: Node, match: Match, matcher: Matcher) -> Node:
    """What a product of the form becomes; the same where sizes or ones are others."""
    graph = matcher.graph
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
    inputs = match["x"], match["weight"]
    return Node(_OF_GROUPS[norm.op], norm.name, inputs, node.outputs, attributes)


PASS = Pass(49, fuse_group_norms)
