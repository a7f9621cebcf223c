"""RMSNormalization over the last axis becomes ``rms_norm``."""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.graph.attributes import Read, Rules
from edgerun.graph.ir import Graph, Node
from edgerun.graph.passes.base import Pass


def fuse_norms(graph: Graph) -> Graph:
    """Rewrites ``RMSNormalization(axis=-1)`` with a constant weight."""
    return graph.with_nodes(_rewrite(node, graph) for node in graph.nodes)


def _rewrite(node: Node, graph: Graph) -> Node:
    if node.op != "RMSNormalization" or node.attrs["axis"] != -1:
        return node
    if len(node.inputs) != 2 or node.inputs[1] not in graph.constants:
        return node
    return node.replace(op="rms_norm", attrs={"epsilon": node.attrs["epsilon"]})


# From the operator specifications of ONNX (opset 23).
READS: Mapping[str, Rules] = {
    "RMSNormalization": {"axis": Read(int, -1), "epsilon": Read(float, 1e-5), "stash_type": 1},
}
PASS = Pass(20, fuse_norms, READS)
