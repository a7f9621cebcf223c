"""Rows of two values as one."""

from __future__ import annotations

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Node


def _emit(binder: Binder, node: Node, index: int) -> None:
    values = [binder.values[name] for name in node.inputs]
    counted_by = binder.counted_by[node.inputs[0]]
    out = binder.new(node.outputs[0], sum(each.width for each in values), counted_by)
    first = 0
    for name, value in zip(("left", "right"), values, strict=True):
        binder.copy_into(out, first, value, counted_by, f"{node.name}/{name}")
        first += value.width


EMITTER = Emitter(_emit)
