"""Normalisation, with the rounding that its readers want."""

from __future__ import annotations

import numpy as np

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.blocks.norms import emit_rounded
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.backends.cpu.operands import Argument
from edgerun.errors import BackendError
from edgerun.graph.ir import Node


def emit_rms_norm(binder: Binder, node: Node, index: int) -> None:
    """Normalises; rounds in the same pass when every reader wants the same int8 form."""
    source, out_name = node.inputs[0], node.outputs[0]
    x, counted_by = binder.values[source], binder.counted_by[source]
    weight = binder.vector(node.inputs[1])
    if x.width % len(weight):
        raise BackendError(
            f"{node.name} normalises rows of {x.width} by {len(weight)} weights, which do not fit"
        )
    arguments: dict[str, Argument] = {
        "rows": binder.count(counted_by),
        "x": x,
        "x_stride": x.stride,
        "weight": weight,
        "size": len(weight),
        "epsilon": np.array([node.attrs["epsilon"]], np.float32),
    }
    if x.width == len(weight) and emit_rounded(binder, node, arguments):
        return
    out = binder.over(source, out_name, index)
    arguments |= {"out": out, "out_stride": out.stride, "groups": x.width // len(weight)}
    arguments["weights"] = 1
    binder.emit(
        "rms_norm",
        {"lanes": min(binder.isa.float_lanes, len(weight))},
        arguments,
        chunks=(counted_by, 1, 1),
        reads={x.key},
        writes={out.key},
        label=node.name,
    )


EMITTER = Emitter(emit_rms_norm)
