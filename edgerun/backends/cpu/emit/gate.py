"""Gated activations."""

from __future__ import annotations

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter, element_cost
from edgerun.graph.ir import Node
from edgerun.machine.profile import GATE

PIECE_ELEMENTS = 2048


def emit_gate(binder: Binder, node: Node, index: int) -> None:
    """Multiplies the activated gate into the up projection."""
    gate, up = (binder.values[name] for name in node.inputs)
    counted_by = binder.counted_by[node.inputs[0]]
    same = binder.dies_at(node.inputs[0], index)
    name = node.outputs[0]
    out = binder.rename(node.inputs[0], name) if same else binder.new(name, gate.width, counted_by)
    pieces = max(1, gate.width // PIECE_ELEMENTS) if binder.shape.rows == 1 else 1
    binder.emit(
        "gate",
        {"activation": node.attrs["activation"], "lanes": binder.isa.float_lanes},
        {
            "rows": binder.count(counted_by),
            "gate": gate,
            "gate_stride": gate.stride,
            "up": up,
            "up_stride": up.stride,
            "out": out,
            "out_stride": out.stride,
            "width": gate.width,
            "pieces": pieces,
        },
        chunks=(counted_by, pieces, 1),
        reads={gate.key, up.key},
        writes={out.key},
        label=node.name,
    )


EMITTER = Emitter(emit_gate, cost=element_cost(GATE))
