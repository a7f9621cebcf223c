"""The lookup of token rows, in float or from codes of a head, becomes ``embedding``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgerun.formats import format_named
from edgerun.formats.base import PackedWeight
from edgerun.graph.attributes import Read, Rules
from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Const, Match, Matcher, Num, Op, Var
from edgerun.graph.passes.base import Pass
from edgerun.ops.base import IDS

FLOAT = 1  # onnx.TensorProto
_DENSE = Op("Gather", Const("table"), Var("ids"), axis=0)
_BYTES = Op("Cast", Op("Gather", Const("codes"), Var("ids"), axis=0), to=FLOAT)
_PAIRS = Op("Unsqueeze", _BYTES, Num(-1))  # of codes of 4 bits, the lower half first
_HIGH = Op("Floor", Op("Mul", _PAIRS, Num(1 / 16)))
_LOW = Op("Sub", _PAIRS, Op("Mul", _HIGH, Num(16)))
_HALVES = Op("Reshape", Op("Concat", _LOW, _HIGH, axis=-1), Const("blocks"))


def _looked_up(codes: Op, middle: int) -> Op:
    scales = Op("Unsqueeze", Op("Gather", Const("scales"), Var("ids"), axis=0), Num(-1))
    return Op("Reshape", Op("Mul", Op("Sub", codes, Num(middle)), scales), Const("shape"))


_PACKED = {"int8": _looked_up(_BYTES, 128), "int4": _looked_up(_HALVES, 8)}


def fuse_embedding(graph: Graph) -> Graph:
    """Rewrites every lookup of ``input_ids``; all tables of a model are packed, or none is."""
    matcher = Matcher(graph)
    packed = [_packed(node, matcher) for node in graph.nodes]
    if any(packed):
        pairs = zip(packed, graph.nodes, strict=True)
        return graph.with_nodes(new or node for new, node in pairs)
    return graph.with_nodes(_dense(node, matcher) for node in graph.nodes)


def _packed(node: Node, matcher: Matcher) -> Node | None:
    graph = matcher.graph
    for format_name, pattern in _PACKED.items() if node.op == "Reshape" else ():
        match = matcher.match(node.outputs[0], pattern)
        table = None if match is None else _table(graph, format_name, match)
        if match is None or table is None:
            continue
        name = f"{match['codes']}/table"
        graph.add_constant(name, table)
        return node.replace(op="embedding", inputs=(IDS, name), attrs={})
    return None


def _dense(node: Node, matcher: Matcher) -> Node:
    match = matcher.match(node.outputs[0], _DENSE) if node.op == "Gather" else None
    if match is None or match["ids"] != "input_ids":
        return node
    if matcher.graph.array(match["table"]).ndim != 2:
        return node
    return node.replace(op="embedding", inputs=(IDS, match["table"]), attrs={})


def _table(graph: Graph, format_name: str, match: Match) -> PackedWeight | None:
    """The table, if rows of it are looked up by ``input_ids`` and its tensors are such a one's."""
    codes, scales = graph.array(match["codes"]), graph.array(match["scales"])
    if match["ids"] != "input_ids" or codes.ndim != 3:
        return None
    if codes.dtype != np.uint8 or scales.dtype != np.float32:
        return None
    rows, blocks, size = codes.shape
    block = size * 8 // format_named(format_name).bits
    if scales.shape != (rows, blocks):
        return None
    if not np.array_equal(graph.array(match["shape"]), [0, 0, blocks * block]):
        return None
    halves = [0, 0, blocks, block]
    if format_name == "int4" and not np.array_equal(graph.array(match["blocks"]), halves):
        return None
    return PackedWeight(format_name, (rows, blocks * block), block, codes, scales)


# From the operator specifications of ONNX (opset 23).
READS: Mapping[str, Rules] = {
    "Cast": {"to": Read(int, needed=True), "saturate": 1},
    "Gather": {"axis": Read(int, 0)},
    "Reshape": {"allowzero": 0},
}
PASS = Pass(40, fuse_embedding, READS)
