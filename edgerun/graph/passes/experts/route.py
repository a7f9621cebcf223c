"""The choice of experts, TopK over the router's logits, becomes ``route``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import numpy as np

from edgerun.graph.attributes import Read, Rules
from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Const, Matcher, Num, Op, Pattern, Var
from edgerun.graph.passes.base import Pass

LAST = -1
_SCORES: Mapping[str, Pattern] = {
    "softmax": Op("Softmax", Var("logits"), axis=LAST),
    "sigmoid": Op("Sigmoid", Var("logits")),
}
_IDS = Op("TopK", Var("logits"), Const("top_k"), output=1, axis=LAST, largest=1, sorted=1)
_NOTHING = Op("ConstantOfShape", Op("Shape", Var("logits"), start=0, end=None))


def _form(scoring: str, normalised: bool, scaled: bool) -> Pattern:
    value: Pattern = Op("GatherElements", _SCORES[scoring], _IDS, axis=LAST)
    if normalised:
        value = Op("Div", value, Op("ReduceSum", value, Num(LAST), keepdims=1))
    if scaled:
        value = Op("Mul", value, Const("scale"))
    return Op("ScatterElements", _NOTHING, _IDS, value, axis=LAST, reduction="none")


_FORMS = {choice: _form(*choice) for choice in product(_SCORES, (False, True), (False, True))}


def fuse_routes(graph: Graph) -> Graph:
    """Rewrites every ScatterElements whose surroundings have the exporter's form."""
    if not any(node.op == "ScatterElements" for node in graph.nodes):
        return graph
    matcher = Matcher(graph)
    # Constants are left to the next pass: there are as many as nodes.
    nodes = [
        _rewrite(node, matcher) if node.op == "ScatterElements" else node for node in graph.nodes
    ]
    return replace(graph, nodes=nodes)


def _rewrite(node: Node, matcher: Matcher) -> Node:
    for (scoring, normalised, scaled), form in _FORMS.items():
        match = matcher.match(node.outputs[0], form)
        if match is None:
            continue
        top_k = matcher.number(match["top_k"])
        scale = matcher.number(match["scale"]) if scaled else 1.0
        if top_k is None or scale is None or not top_k.is_integer():
            continue
        attributes = {
            "top_k": int(top_k),
            "scoring": scoring,
            "normalise": int(normalised),
            "scale": float(np.float32(scale)),
        }
        return node.replace(op="route", inputs=(match["logits"],), attrs=attributes)
    return node


# From the operator specifications of ONNX (opset 23).
READS: Mapping[str, Rules] = {
    "GatherElements": {"axis": Read(int, 0)},
    "ReduceSum": {"keepdims": Read(int, 1), "noop_with_empty_axes": 0},
    "ScatterElements": {"axis": Read(int, 0), "reduction": Read(str, "none")},
    "Shape": {"start": Read(int, 0), "end": Read(int)},
    "Softmax": {"axis": Read(int, -1)},
    "TopK": {"axis": Read(int, -1), "largest": Read(int, 1), "sorted": Read(int, 1)},
}
PASS = Pass(6, fuse_routes, READS)
