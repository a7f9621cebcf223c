"""``toys.Decay(x, past_decay.N.sum)`` becomes ``decay``."""

from __future__ import annotations

import re

from edgerun.graph.attributes import Read
from edgerun.graph.ir import Graph, Node
from edgerun.graph.passes.base import Pass

_PAST = re.compile(r"past_decay\.(\d+)\.sum")


def fuse_decay(graph: Graph) -> Graph:
    """Reads the layer's number from the name of its state."""
    return graph.with_nodes(map(_rewrite, graph.nodes))


def _rewrite(node: Node) -> Node:
    past = _PAST.fullmatch(node.inputs[-1]) if node.op == "toys.Decay" else None
    if past is None:
        return node
    attrs = {"layer": int(past[1]), **node.attrs}
    return node.replace(op="decay", inputs=node.inputs[:1], outputs=node.outputs[:1], attrs=attrs)


READS = {"toys.Decay": {"width": Read(int, needed=True), "rate": Read(float, needed=True)}}
PASS = Pass(16, fuse_decay, READS)
