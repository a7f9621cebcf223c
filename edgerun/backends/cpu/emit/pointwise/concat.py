"""Rows of two values as one."""

from __future__ import annotations

import numpy as np

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Node


def _emit(binder: Binder, node: Node, index: int) -> None:
    """Copies both by the kernel that copies rows, the second into the middle of them."""
    values = [binder.values[name] for name in node.inputs]
    counted_by = binder.counted_by[node.inputs[0]]
    out = binder.new(node.outputs[0], sum(each.width for each in values), counted_by)
    first = 0
    for name, value in zip(("left", "right"), values, strict=True):
        binder.emit(
            "select_rows",
            {},
            {
                "rows": binder.count(counted_by),
                "index": np.arange(binder.shape.rows, dtype=np.int32),
                "x": value,
                "x_stride": value.stride,
                "out": out.array.reshape(-1)[first:],
                "out_stride": out.stride,
                "width": value.width,
            },
            chunks=(counted_by, 1, 1),
            reads={value.key},
            writes={out.key},
            label=f"{node.name}/{name}",
        )
        first += value.width


EMITTER = Emitter(_emit)
