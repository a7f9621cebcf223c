"""Values of which the largest elements are left."""

from __future__ import annotations

import numpy as np

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Node


def _emit(binder: Binder, node: Node, index: int) -> None:
    """Cuts rows off in place where nobody else reads them."""
    source = node.inputs[0]
    x, counted_by = binder.values[source], binder.counted_by[source]
    out = binder.over(source, node.outputs[0], index)
    binder.emit(
        "gaussian_top_k",
        {"lanes": binder.isa.float_lanes},
        {
            "rows": binder.count(counted_by),
            "x": x,
            "x_stride": x.stride,
            "out": out,
            "out_stride": out.stride,
            "width": x.width,
            "deviations": np.array([node.attrs["deviations"]], np.float32),
        },
        chunks=(counted_by, 1, 1),
        reads={x.key},
        writes={out.key},
        label=node.name,
    )


EMITTER = Emitter(_emit)
