"""The choice of experts."""

from __future__ import annotations

import numpy as np

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Node

_NUMBERS = ("top_k", "normalise", "groups", "top_groups", "group_top_k")


def emit_route(binder: Binder, node: Node, index: int) -> None:
    """Scores the experts of each row."""
    x, counted_by = binder.values[node.inputs[0]], binder.counted_by[node.inputs[0]]
    bias = binder.vector(node.inputs[1]) if any(node.inputs[1:]) else None
    out = binder.new(node.outputs[0], x.width, counted_by)
    binder.emit(
        "route",
        {
            "scoring": node.attrs["scoring"],
            "biased": "" if bias is None else node.attrs["biased"],
            "grouped": node.attrs["groups"] > 1,
        },
        {
            "rows": binder.count(counted_by),
            "x": x,
            "x_stride": x.stride,
            "bias": bias,
            "out": out,
            "out_stride": out.stride,
            "scale": np.array([node.attrs["scale"]], np.float32),
            "epsilon": np.array([node.attrs["epsilon"]], np.float32),
            "experts": x.width,
            **{name: node.attrs[name] for name in _NUMBERS},
        },
        chunks=(counted_by, 1, 1),
        reads={x.key},
        writes={out.key},
        label=node.name,
    )


EMITTER = Emitter(emit_route)
