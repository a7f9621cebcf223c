"""Finds the passes: the files beside this one, and those of folders below."""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.discovery import entries
from edgerun.graph.attributes import Rules
from edgerun.graph.passes.base import Pass

ROOMS = (
    "edgerun.graph.passes",
    "edgerun.graph.passes.experts",
    "edgerun.graph.passes.pointwise",
    "edgerun.graph.passes.recurrent",
)
# In the order in which they run.
PASSES: tuple[Pass, ...] = tuple(
    sorted(
        (step for room in ROOMS for step in entries(room, "PASS").values()),
        key=lambda step: step.order,
    )
)

# By ONNX op, the attributes that some pass reads.
ATTRIBUTES: Mapping[str, Rules] = {op: rules for step in PASSES for op, rules in step.reads.items()}
