"""Products with a number."""

from __future__ import annotations

import numpy as np

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Node


def _emit(binder: Binder, node: Node, index: int) -> None:
    """Multiplies whole rows, padding included, in place where nobody else reads them."""
    source = node.inputs[0]
    x, counted_by = binder.values[source], binder.counted_by[source]
    out = binder.over(source, node.outputs[0], index)
    binder.emit(
        "scale",
        {"lanes": binder.isa.float_lanes},
        {
            "rows": binder.count(counted_by),
            "x": x,
            "out": out,
            "width": x.stride,
            "factor": np.array([node.attrs["factor"]], np.float32),
        },
        chunks=(counted_by, 1, 1),
        reads={x.key},
        writes={out.key},
        label=node.name,
    )


EMITTER = Emitter(_emit)
