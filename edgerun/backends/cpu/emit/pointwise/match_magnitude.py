"""Values that are made as large as others."""

from __future__ import annotations

import numpy as np

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Node


def _emit(binder: Binder, node: Node, index: int) -> None:
    """Scales rows in place where nobody else reads them."""
    source = node.inputs[0]
    x, like = (binder.values[each] for each in node.inputs)
    counted_by = binder.counted_by[source]
    out = binder.over(source, node.outputs[0], index)
    binder.emit(
        "match_magnitude",
        {"lanes": binder.isa.float_lanes},
        {
            "rows": binder.count(counted_by),
            "x": x,
            "x_stride": x.stride,
            "like": like,
            "like_stride": like.stride,
            "out": out,
            "out_stride": out.stride,
            "width": x.width,
            "floor": np.array([node.attrs["floor"]], np.float32),
        },
        chunks=(counted_by, 1, 1),
        reads={x.key, like.key},
        writes={out.key},
        label=node.name,
    )


EMITTER = Emitter(_emit)
