"""Residual streams before a layer."""

from __future__ import annotations

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Node


def _emit(binder: Binder, node: Node, index: int) -> None:
    streams, coefs = (binder.values[name] for name in node.inputs)
    counted_by = binder.counted_by[node.inputs[0]]
    out = binder.new(node.outputs[0], streams.width, counted_by)
    binder.emit(
        "altup_predict",
        {"lanes": binder.isa.float_lanes},
        {
            "rows": binder.count(counted_by),
            "streams": streams,
            "streams_stride": streams.stride,
            "coefs": coefs,
            "coefs_stride": coefs.stride,
            "out": out,
            "out_stride": out.stride,
            "parts": node.attrs["parts"],
            "width": streams.width // int(node.attrs["parts"]),
        },
        chunks=(counted_by, 1, 1),
        reads={streams.key, coefs.key},
        writes={out.key},
        label=node.name,
    )


EMITTER = Emitter(_emit)
