"""Inserts ``select_rows`` before the final norm, so that the head sees only wanted rows."""

from __future__ import annotations

from edgerun.graph.ir import Graph, Node
from edgerun.graph.passes.base import Pass
from edgerun.ops.base import LOGITS

_NORMS = frozenset(("rms_norm", "layer_norm"))


def select_logit_rows(graph: Graph) -> Graph:
    """Selects rows on the input of the norm and head that compute the logits."""
    producers, consumers = graph.producers(), graph.consumers()
    head = producers.get(LOGITS)
    if head is not None and head.op == "softcap":
        head = producers.get(head.inputs[0])
    if head is None or head.op != "linear":
        return graph
    first = head
    while True:
        before = producers.get(first.inputs[0])
        single = len(consumers.get(first.inputs[0], [])) == 1
        if before is None or before.op not in _NORMS or not single:
            break
        first = before
    source = first.inputs[0]
    chosen = Node("select_rows", "select_rows", (source,), (f"{source}/selected",))
    changed = first.replace(inputs=(chosen.outputs[0], *first.inputs[1:]))
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.extend([chosen, changed] if node is first else [node])
    result = graph.with_nodes(nodes)
    result.outputs = [LOGITS]
    return result


PASS = Pass(80, select_logit_rows)
