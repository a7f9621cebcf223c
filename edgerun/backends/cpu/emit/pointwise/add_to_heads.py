"""Sums of a value's heads and a row."""

from __future__ import annotations

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Node


def _emit(binder: Binder, node: Node, index: int) -> None:
    whole, row = (binder.values[name] for name in node.inputs)
    counted_by = binder.counted_by[node.inputs[0]]
    out = binder.new(node.outputs[0], whole.width, counted_by)
    binder.emit(
        "add_to_heads",
        {"lanes": binder.isa.float_lanes},
        {
            "rows": binder.count(counted_by),
            "left": whole,
            "left_stride": whole.stride,
            "right": row,
            "right_stride": row.stride,
            "out": out,
            "out_stride": out.stride,
            "heads": node.attrs["heads"],
            "width": row.width,
        },
        chunks=(counted_by, 1, 1),
        reads={whole.key, row.key},
        writes={out.key},
        label=node.name,
    )


EMITTER = Emitter(_emit)
