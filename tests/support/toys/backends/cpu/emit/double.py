"""Twice a value, by a kernel of its own."""

from __future__ import annotations

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Node


def emit_double(binder: Binder, node: Node, index: int) -> None:
    """Doubles whole rows, of whatever lies between their ends too."""
    (source,), (name,) = node.inputs, node.outputs
    x, counted_by = binder.values[source], binder.counted_by[source]
    out = binder.new(name, x.width, counted_by)
    arguments = {"x": x, "x_stride": x.stride, "out": out, "out_stride": out.stride}
    binder.emit(
        "double",
        {"lanes": binder.lanes_of(x.stride)},
        {"rows": binder.count(counted_by), **arguments, "width": x.stride},
        chunks=(counted_by, 1, 1),
        reads={x.key},
        writes={out.key},
        label=node.name,
    )


EMITTER = Emitter(emit_double)
