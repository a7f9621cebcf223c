"""Parts of rows."""

from __future__ import annotations

import numpy as np

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Node


def _emit(binder: Binder, node: Node, index: int) -> None:
    """Copies a part by the kernel that copies rows, beginning in the middle of the first."""
    x, counted_by = binder.values[node.inputs[0]], binder.counted_by[node.inputs[0]]
    width = node.attrs["width"]
    first = width * (node.attrs["number"] - 1)
    out = binder.new(node.outputs[0], width, counted_by)
    binder.emit(
        "select_rows",
        {},
        {
            "rows": binder.count(counted_by),
            "index": np.arange(binder.shape.rows, dtype=np.int32),
            "x": x.array.reshape(-1)[first:],
            "x_stride": x.stride,
            "out": out,
            "out_stride": out.stride,
            "width": width,
        },
        chunks=(counted_by, 1, 1),
        reads={x.key},
        writes={out.key},
        label=node.name,
    )


EMITTER = Emitter(_emit)
