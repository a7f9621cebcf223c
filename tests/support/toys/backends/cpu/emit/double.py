"""Twice a value, by the kernel for sums."""

from __future__ import annotations

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Node


def emit_double(binder: Binder, node: Node, index: int) -> None:
    """Adds a value to itself."""
    (source,), (name,) = node.inputs, node.outputs
    x, counted_by = binder.values[source], binder.counted_by[source]
    out = binder.new(name, x.width, counted_by)
    binder.emit(
        "add",
        {"lanes": binder.isa.float_lanes},
        {"rows": binder.count(counted_by), "a": x, "b": x, "out": out, "width": x.stride},
        chunks=(counted_by, 1, 1),
        reads={x.key},
        writes={out.key},
        label=node.name,
    )


EMITTER = Emitter(emit_double)
