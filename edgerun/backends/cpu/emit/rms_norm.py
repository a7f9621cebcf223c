"""Normalisation, with the rounding that its readers want."""

from __future__ import annotations

import numpy as np

from edgerun.backends.cpu.binder import Binder, Rounding
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.backends.cpu.emit.linear import rounding_arguments, take_rounded
from edgerun.backends.cpu.operands import Argument
from edgerun.errors import BackendError
from edgerun.graph.ir import Node

# Kernels that normalise and round in one pass, by the rounding they replace.
FUSED = {"quantize_row": "rms_norm_row", "quantize_block": "rms_norm_block"}


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
    lanes = binder.isa.float_lanes
    form = _common_rounding(binder, out_name)
    fused = FUSED.get(form.kernel) if form is not None and x.width == len(weight) else None
    if form is not None and fused is not None:
        rounded = take_rounded(binder, out_name, form, counted_by)
        binder.emit(
            fused,
            {"block": form.block, "lanes": lanes} if form.block else {"lanes": lanes},
            arguments | rounding_arguments(form, rounded),
            chunks=(counted_by, 1, 1),
            reads={x.key},
            writes=rounded.keys(),
            label=node.name,
        )
        return
    out = binder.over(source, out_name, index)
    arguments |= {"out": out, "out_stride": out.stride, "groups": x.width // len(weight)}
    arguments["weights"] = 1
    binder.emit(
        "rms_norm",
        {"lanes": min(lanes, len(weight))},
        arguments,
        chunks=(counted_by, 1, 1),
        reads={x.key},
        writes={out.key},
        label=node.name,
    )


def _common_rounding(binder: Binder, value: str) -> Rounding | None:
    """The one rounded form in which everything reads a value; None when there is none."""
    forms = {
        binder.emitters[reader.op].rounding(binder, reader)
        for reader in binder.readers.get(value, [])
    }
    return forms.pop() if len(forms) == 1 and value not in binder.graph.outputs else None


EMITTER = Emitter(emit_rms_norm)
