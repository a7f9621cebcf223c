"""Inputs of layers: norms of the parts of rows, and a sum, by the kernels of these."""

from __future__ import annotations

import numpy as np

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Node


def _emit(binder: Binder, node: Node, index: int) -> None:
    x, tokens = (binder.values[name] for name in node.inputs[:2])
    counted_by, weight = binder.counted_by[node.inputs[0]], binder.vector(node.inputs[2])
    out = binder.new(node.outputs[0], x.width, counted_by)
    binder.emit(
        "rms_norm",
        {"lanes": min(binder.isa.float_lanes, len(weight))},
        {
            "rows": binder.count(counted_by),
            "x": x,
            "x_stride": x.stride,
            "weight": weight,
            "size": len(weight),
            "epsilon": np.array([node.attrs["epsilon"]], np.float32),
            "out": out,
            "out_stride": out.stride,
            "groups": node.attrs["parts"],
            "weights": 1,
        },
        chunks=(counted_by, 1, 1),
        reads={x.key},
        writes={out.key},
        label=f"{node.name}/norm",
    )
    binder.emit(
        "add",
        {"lanes": binder.isa.float_lanes},
        {
            "rows": binder.count(counted_by),
            "left": out,
            "right": tokens,
            "out": out,
            "width": out.stride,
        },
        chunks=(counted_by, 1, 1),
        reads={out.key, tokens.key},
        writes={out.key},
        label=node.name,
    )


EMITTER = Emitter(_emit)
