"""What decoding reads of a model's weights, as its back-ends keep them."""

from __future__ import annotations

from collections.abc import Sequence

from edgerun.backends.base import Backend, Phase
from edgerun.graph.shapes import node_work, value_shapes
from edgerun.ops.registry import OPS
from edgerun.plan.plans import Plan


def streamed_bytes(plan: Plan, backends: Sequence[Backend]) -> int:
    """Bytes of weights that a decode step streams: not those of which a row reads a part only."""
    by_name = {backend.name: backend for backend in backends}
    used: dict[str, int] = {}
    for segment in plan.segments[Phase.DECODE]:
        graph, keeps = segment.graph, by_name[segment.backend].weight_bytes
        shapes = value_shapes(graph)
        for node in graph.nodes:
            streams = node.op not in OPS or node_work(graph, node, shapes).nbytes
            for name in node.inputs if streams else ():
                if name in graph.constants:
                    used[name] = keeps(graph, node, name)
    return sum(used.values())
