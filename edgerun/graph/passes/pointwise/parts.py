"""Refuses what a file does with each part of a row, where it would become an op of whole rows.

A value ``[.., .., parts, width]`` is rows of ``parts * width`` here. Functions of its elements are
the same; its mean is another, and so is what stands beside it.
"""

from __future__ import annotations

from edgerun.errors import UnsupportedError
from edgerun.graph.ir import Graph
from edgerun.graph.passes.base import Pass

# Ops whose first output has parts, and those that make whole rows of them.
PARTED = frozenset(
    ("add_to_others", "altup_correct", "altup_predict", "concat", "per_layer_inputs")
)
JOINING = frozenset(("add_to_heads", "group_rms_norm", "row_part"))
# By op, the first input that must be whole rows: what is joined may have been joined before.
WHOLE = {"concat": 1, "gaussian_top_k": 0, "layer_norm": 0, "match_magnitude": 0, "route": 0}


def check_parts(graph: Graph) -> Graph:
    """Gives the graph back; what is made of parts has parts, if it is not by an op of ``JOINING``.

    Raises:
        UnsupportedError: an op of whole rows reads parts.
    """
    parted: set[str] = set()
    for node in graph.nodes:
        if node.op in WHOLE and not parted.isdisjoint(node.inputs[WHOLE[node.op] :]):
            raise UnsupportedError(
                f"node '{node.name}' would be {node.op} of whole rows, and what it reads has rows "
                "in parts, each of which it treats by itself: edgerun has no op for that"
            )
        if node.op in PARTED:
            parted.add(node.outputs[0])
        elif node.op not in JOINING and not parted.isdisjoint(node.inputs):
            parted.update(node.outputs)
    return graph


PASS = Pass(95, check_parts)
