"""Gates of heads."""

from __future__ import annotations

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter, element_cost
from edgerun.graph.ir import Node
from edgerun.machine.profile import GATE


def _emit(binder: Binder, node: Node, index: int) -> None:
    gate, up = (binder.values[name] for name in node.inputs)
    counted_by = binder.counted_by[node.inputs[1]]
    out = binder.over(node.inputs[1], node.outputs[0], index)
    binder.emit(
        "gate_heads",
        {"activation": node.attrs["activation"], "lanes": binder.isa.float_lanes},
        {
            "rows": binder.count(counted_by),
            "gate": gate,
            "gate_stride": gate.stride,
            "up": up,
            "up_stride": up.stride,
            "out": out,
            "out_stride": out.stride,
            "heads": node.attrs["heads"],
            "width": node.attrs["head_dim"],
        },
        chunks=(counted_by, 1, 1),
        reads={gate.key, up.key},
        writes={out.key},
        label=node.name,
    )


EMITTER = Emitter(_emit, cost=element_cost(GATE))
