"""Residual streams behind a layer."""

from __future__ import annotations

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Node


def _emit(binder: Binder, node: Node, index: int) -> None:
    """Corrects streams in place where nobody else reads what was predicted."""
    names, (name, first_name) = node.inputs[:3], node.outputs
    activated, predictions, coefs = (binder.values[each] for each in names)
    counted_by = binder.counted_by[names[0]]
    out = binder.over(names[1], name, index)
    first = binder.new(first_name, activated.width, counted_by)
    binder.emit(
        "altup_correct",
        {"lanes": binder.isa.float_lanes},
        {
            "rows": binder.count(counted_by),
            "activated": activated,
            "activated_stride": activated.stride,
            "predictions": predictions,
            "predictions_stride": predictions.stride,
            "coefs": coefs,
            "coefs_stride": coefs.stride,
            "scale": binder.vector(node.inputs[3]) if any(node.inputs[3:]) else None,
            "out": out,
            "out_stride": out.stride,
            "first": first,
            "first_stride": first.stride,
            "parts": node.attrs["parts"],
            "width": activated.width,
        },
        chunks=(counted_by, 1, 1),
        reads={activated.key, predictions.key, coefs.key},
        writes={out.key, first.key},
        label=node.name,
    )


EMITTER = Emitter(_emit)
