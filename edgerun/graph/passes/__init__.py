"""Passes turn the exporter's ONNX forms into the ops of ``ops/``, one form a file.

Each pass is a function ``Graph -> Graph`` that rewrites the nodes it recognises and leaves the
others alone; it returns a new graph, and may add derived constants to the one it was given. What
stays unrecognised keeps its ONNX name, and is refused (``graph/lower.py``). A pattern says all of
a form: op, inputs, and the attributes that matter; ``attributes.py`` sees to it that there are no
others.
"""

from __future__ import annotations

from collections.abc import Callable

from edgerun.graph.ir import Graph
from edgerun.graph.passes import (
    attention,
    attributes,
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
    attributes.read_attributes,
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
