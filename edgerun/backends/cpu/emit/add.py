"""Sums."""

from __future__ import annotations

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Node


def emit_add(binder: Binder, node: Node, index: int) -> None:
    """Adds two values over whole rows, padding included."""
    a, b = (binder.values[name] for name in node.inputs)
    counted_by = binder.counted_by[node.inputs[0]]
    out = binder.new(node.outputs[0], a.width, counted_by)
    binder.emit(
        "add",
        {"lanes": binder.isa.float_lanes},
        {
            "rows": binder.count(counted_by),
            "left": a,
            "right": b,
            "out": out,
            "width": a.stride,
        },
        chunks=(counted_by, 1, 1),
        reads={a.key, b.key},
        writes={out.key},
        label=node.name,
    )


EMITTER = Emitter(emit_add)
