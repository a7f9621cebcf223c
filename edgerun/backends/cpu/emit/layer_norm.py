"""Normalisation by mean and deviation, with the rounding that its readers want."""

from __future__ import annotations

import numpy as np

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.blocks.norms import emit_rounded
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.backends.cpu.operands import Argument
from edgerun.graph.ir import Node


def _emit(binder: Binder, node: Node, index: int) -> None:
    """Normalises, in place where nobody else reads the rows."""
    source, weight_name, bias_name = (*node.inputs, "")[:3]
    x, counted_by = binder.values[source], binder.counted_by[source]
    weight, groups = binder.vector(weight_name), node.attrs["groups"]
    size = x.width // groups
    arguments: dict[str, Argument] = {
        "rows": binder.count(counted_by),
        "x": x,
        "x_stride": x.stride,
        "weight": weight,
        "bias": binder.vector(bias_name) if bias_name else np.zeros_like(weight),
        "size": size,
        "epsilon": np.array([node.attrs["epsilon"]], np.float32),
    }
    if groups == 1 and emit_rounded(binder, node, arguments):
        return
    out = binder.over(source, node.outputs[0], index)
    binder.emit(
        "layer_norm",
        {"lanes": min(binder.isa.float_lanes, size)},
        {**arguments, "out": out, "out_stride": out.stride, "groups": groups},
        chunks=(counted_by, 1, 1),
        reads={x.key},
        writes={out.key},
        label=node.name,
    )


EMITTER = Emitter(_emit)
