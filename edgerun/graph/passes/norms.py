"""RMSNormalization over the last axis becomes ``rms_norm``, LayerNormalization ``layer_norm``."""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.graph.attributes import Read, Rules
from edgerun.graph.ir import Graph, Node
from edgerun.graph.passes.base import Pass

# By ONNX's op what it becomes, and how many inputs it may have.
_NORMS = {"RMSNormalization": ("rms_norm", (2,)), "LayerNormalization": ("layer_norm", (2, 3))}


def fuse_norms(graph: Graph) -> Graph:
    """Rewrites norms over the last axis with constant weights, and constant biases."""
    return graph.with_nodes(_rewrite(node, graph) for node in graph.nodes)


def _rewrite(node: Node, graph: Graph) -> Node:
    op, counts = _NORMS.get(node.op, ("", ()))
    if len(node.inputs) not in counts or len(node.outputs) != 1 or node.attrs["axis"] != -1:
        return node
    if any(name not in graph.constants for name in node.inputs[1:]):
        return node
    attributes = {"groups": 1} if op == "layer_norm" else {}
    return node.replace(op=op, attrs={**attributes, "epsilon": node.attrs["epsilon"]})


# From the operator specifications of ONNX (opset 23).
_READ: Rules = {"axis": Read(int, -1), "epsilon": Read(float, 1e-5), "stash_type": 1}
READS: Mapping[str, Rules] = dict.fromkeys(_NORMS, _READ)
PASS = Pass(20, fuse_norms, READS)
