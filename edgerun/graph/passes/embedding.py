"""The lookup of token rows, in float or from shared int8 codes, becomes ``embedding``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgerun.formats.base import PackedWeight
from edgerun.graph.attributes import Read, Rules
from edgerun.graph.ir import Graph
from edgerun.graph.match import Const, Matcher, Num, Op, Var
from edgerun.graph.passes.base import Pass
from edgerun.ops.base import IDS

FLOAT = 1  # onnx.TensorProto
_DENSE = Op("Gather", Const("table"), Var("ids"), axis=0)
_INT8 = Op(
    "Reshape",
    Op(
        "Mul",
        Op("Sub", Op("Cast", Op("Gather", Const("codes"), Var("ids"), axis=0), to=FLOAT), Num(128)),
        Op("Unsqueeze", Op("Gather", Const("scales"), Var("ids"), axis=0), Num(-1)),
    ),
    Const("shape"),
)


def fuse_embedding(graph: Graph) -> Graph:
    """Rewrites the one lookup of ``input_ids``."""
    matcher = Matcher(graph)
    nodes = list(graph.nodes)
    for index, node in enumerate(nodes):
        int8 = matcher.match(node.outputs[0], _INT8)
        if int8 is not None and int8["ids"] == "input_ids":
            table = _packed(graph, int8["codes"], int8["scales"])
            shape = graph.array(int8["shape"]).reshape(-1).tolist()
            if table is None or shape != [0, 0, table.shape[1]]:
                continue
            name = f"{int8['codes']}/table"
            graph.add_constant(name, table)
            nodes[index] = node.replace(op="embedding", inputs=(IDS, name), attrs={})
            return graph.with_nodes(nodes)
    for index, node in enumerate(nodes):
        dense = matcher.match(node.outputs[0], _DENSE)
        if dense is not None and dense["ids"] == "input_ids":
            if graph.array(dense["table"]).ndim != 2:
                continue
            nodes[index] = node.replace(op="embedding", inputs=(IDS, dense["table"]), attrs={})
            return graph.with_nodes(nodes)
    return graph


def _packed(graph: Graph, codes_name: str, scales_name: str) -> PackedWeight | None:
    codes, scales = graph.array(codes_name), graph.array(scales_name)
    if codes.ndim != 3 or codes.dtype != np.uint8 or scales.dtype != np.float32:
        return None
    rows, blocks, block = codes.shape
    if scales.size != rows * blocks:
        return None
    return PackedWeight("int8", (rows, blocks * block), block, codes, scales.reshape(rows, blocks))


# From the operator specifications of ONNX (opset 23).
READS: Mapping[str, Rules] = {
    "Cast": {"to": Read(int, needed=True), "saturate": 1},
    "Gather": {"axis": Read(int, 0)},
    "Reshape": {"allowzero": 0},
}
PASS = Pass(40, fuse_embedding, READS)
