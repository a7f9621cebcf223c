"""The rows whose logits are wanted."""

from __future__ import annotations

from edgerun.backends.cpu.binder import LOGIT_ROWS, Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Node


def emit_select_rows(binder: Binder, node: Node, index: int) -> None:
    """Gathers the rows whose logits are wanted."""
    x = binder.values[node.inputs[0]]
    out = binder.new(node.outputs[0], x.width, LOGIT_ROWS)
    binder.emit(
        "select_rows",
        {},
        {
            "rows": binder.count(LOGIT_ROWS),
            "index": binder.logit_rows,
            "x": x,
            "x_stride": x.stride,
            "out": out,
            "out_stride": out.stride,
            "width": x.width,
        },
        chunks=(LOGIT_ROWS, 1, 1),
        reads={x.key},
        writes={out.key},
        label=node.name,
    )


EMITTER = Emitter(emit_select_rows)
