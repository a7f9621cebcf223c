"""Sums of a value's parts, but for the first, and a row."""

from __future__ import annotations

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Node


def _emit(binder: Binder, node: Node, index: int) -> None:
    """Adds by the kernel that adds to heads, from the second part on, in place or to a copy."""
    row, source = binder.values[node.inputs[0]], node.inputs[1]
    name, counted_by = node.outputs[0], binder.counted_by[source]
    if binder.dies_at(source, index):
        out = binder.rename(source, name)
    else:
        out = binder.copy(source, name, node.name)
    others = out.array.reshape(-1)[row.width :]
    binder.emit(
        "add_to_heads",
        {"lanes": binder.isa.float_lanes},
        {
            "rows": binder.count(counted_by),
            "left": others,
            "left_stride": out.stride,
            "right": row,
            "right_stride": row.stride,
            "out": others,
            "out_stride": out.stride,
            "heads": node.attrs["parts"] - 1,
            "width": row.width,
        },
        chunks=(counted_by, 1, 1),
        reads={row.key, out.key},
        writes={out.key},
        label=node.name,
    )


EMITTER = Emitter(_emit)
