"""Finds the passes: the files beside this one."""

from __future__ import annotations

from edgerun.discovery import entries
from edgerun.graph.passes.base import Pass

# In the order in which they run.
PASSES: tuple[Pass, ...] = tuple(
    sorted(entries("edgerun.graph.passes", "PASS").values(), key=lambda step: step.order)
)
