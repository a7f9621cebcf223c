"""Normalisation of groups whose weights differ."""

from __future__ import annotations

import numpy as np

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Node


def _emit(binder: Binder, node: Node, index: int) -> None:
    source, groups = node.inputs[0], node.attrs["groups"]
    x, counted_by = binder.values[source], binder.counted_by[source]
    out = binder.over(source, node.outputs[0], index)
    size = x.width // groups
    binder.emit(
        "rms_norm",
        {"lanes": min(binder.isa.float_lanes, size)},
        {
            "rows": binder.count(counted_by),
            "x": x,
            "x_stride": x.stride,
            "weight": binder.vector(node.inputs[1]),
            "out": out,
            "out_stride": out.stride,
            "groups": groups,
            "weights": groups,
            "size": size,
            "epsilon": np.array([node.attrs["epsilon"]], np.float32),
        },
        chunks=(counted_by, 1, 1),
        reads={x.key},
        writes={out.key},
        label=node.name,
    )


EMITTER = Emitter(_emit)
