"""Rotary position embedding: the written-out rotate-half form becomes ``rotary``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgerun.graph.attributes import Read, Rules
from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Const, Matcher, Num, Op, Pattern, Var
from edgerun.graph.passes.base import Pass
from edgerun.ops.base import POSITIONS

FLOAT = 1  # onnx.TensorProto
_ANGLES = Op(
    "Mul",
    Op("Unsqueeze", Op("Cast", Var("position_ids"), to=FLOAT), Num(-1)),
    Const("inv_freq"),
)
_BOTH = Op("Concat", _ANGLES, _ANGLES, axis=-1)


def _table(op: str, scaled: bool) -> Op:
    value: Pattern = Op(op, _BOTH)
    if scaled:
        value = Op("Mul", value, Const("factor"))
    return Op("Unsqueeze", value, Num(1))


def _rotated(scaled: bool) -> Op:
    upper = Op("Slice", Var("x"), Const("middle"), Const("end"), Num(-1))
    lower = Op("Slice", Var("x"), Num(0), Const("middle"), Num(-1))
    turned = Op("Concat", Op("Neg", upper), lower, axis=-1)
    return Op(
        "Add",
        Op("Mul", Var("x"), _table("Cos", scaled)),
        Op("Mul", turned, _table("Sin", scaled)),
    )


_FORMS = (_rotated(scaled=False), _rotated(scaled=True))


def fuse_rotary(graph: Graph) -> Graph:
    """Rewrites ``x * cos + rotate_half(x) * sin`` with positions from ``position_ids``."""
    matcher = Matcher(graph)
    return graph.with_nodes(_rewrite(node, matcher) for node in graph.nodes)


def _rewrite(node: Node, matcher: Matcher) -> Node:
    if node.op != "Add":
        return node
    for form in _FORMS:
        match = matcher.match(node.outputs[0], form)
        if match is None or match["position_ids"] != "position_ids":
            continue
        inv_freq = matcher.graph.array(match["inv_freq"])
        half = len(inv_freq)
        middle, end = matcher.number(match["middle"]), matcher.number(match["end"])
        if middle != half or end is None or not end >= 2 * half:
            continue
        factor = matcher.number(match["factor"]) if "factor" in match.values else 1.0
        if factor is None:
            continue
        return node.replace(
            op="rotary",
            inputs=(match["x"], POSITIONS, match["inv_freq"]),
            attrs={
                "head_dim": 2 * half,
                "factor": float(np.float32(factor)),
            },
        )
    return node


# From the operator specifications of ONNX (opset 23).
READS: Mapping[str, Rules] = {
    "Cast": {"to": Read(int, needed=True), "saturate": 1},
    "Concat": {"axis": Read(int, needed=True)},
}
PASS = Pass(10, fuse_rotary, READS)
