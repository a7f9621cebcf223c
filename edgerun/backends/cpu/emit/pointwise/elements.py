"""What emits kernels that make of each element another, by numbers that are the op's attributes."""

from __future__ import annotations

import numpy as np

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter, element_cost
from edgerun.graph.ir import Node
from edgerun.machine.profile import GATE

PIECE_ELEMENTS = 2048


def _emit(binder: Binder, node: Node, index: int) -> None:
    """Works on rows piece by piece, in place where nobody else reads them."""
    source = node.inputs[0]
    x, counted_by = binder.values[source], binder.counted_by[source]
    out = binder.over(source, node.outputs[0], index)
    pieces = max(1, x.width // PIECE_ELEMENTS)
    binder.emit(
        node.op,
        {"lanes": binder.isa.float_lanes},
        {
            "rows": binder.count(counted_by),
            "x": x,
            "x_stride": x.stride,
            "out": out,
            "out_stride": out.stride,
            "width": x.width,
            "pieces": pieces,
            **{name: np.array([value], np.float32) for name, value in node.attrs.items()},
        },
        chunks=(counted_by, pieces, 1),
        reads={x.key},
        writes={out.key},
        label=node.name,
    )


ELEMENTS = Emitter(_emit, cost=element_cost(GATE))
