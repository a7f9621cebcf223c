"""Passes turn the exporter's ONNX forms into the ops of ``graph/ops.py``, one form a file.

Each pass is a function ``Graph -> Graph`` that rewrites the nodes it recognises and leaves the
others alone; it returns a new graph, and may add derived constants to the one it was given. What
stays unrecognised keeps its ONNX name; the planner then looks for a back-end that runs the
original file.
"""

from __future__ import annotations

from collections.abc import Callable

from edgerun.graph.ir import Graph
from edgerun.graph.passes import (
    attention,
    embedding,
    gates,
    linear,
    norms,
    residuals,
    rotary,
    rows,
)
from edgerun.graph.passes.prune import prune

# In this order: attention reads what rotary wrote, residuals what linear wrote, and so on.
PASSES: tuple[Callable[[Graph], Graph], ...] = (
    rotary.fuse_rotary,
    norms.fuse_norms,
    attention.fuse_attention,
    embedding.fuse_embedding,
    linear.fuse_linear,
    gates.fuse_gates,
    residuals.fuse_residuals,
    rows.select_logit_rows,
    prune,
)


def lower(graph: Graph) -> Graph:
    """Applies all passes."""
    for step in PASSES:
        graph = step(graph)
    return graph
