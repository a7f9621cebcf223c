"""Gated activations."""

from __future__ import annotations

from edgerun.backends.cpu.binder import ANY_LOGITS, LOGIT_ROWS, ONE, Binder
from edgerun.backends.cpu.emit.blocks.gemm import emit_gemm, in_blocks, layer_path
from edgerun.backends.cpu.emit.emitter import Emitter, element_cost
from edgerun.backends.cpu.emit.linear import (
    GATED,
    emit_rounding,
    kernel_of,
    panels_a_chunk,
    panels_of,
    rounding,
    shares,
    tiles_of,
)
from edgerun.graph.ir import Node
from edgerun.kernels.layouts.stream import StreamWeight
from edgerun.machine.profile import GATE

PIECE_ELEMENTS = 2048


def emit_gate(binder: Binder, node: Node, index: int) -> None:
    """Multiplies the activated gate into the up projection, which may both be left to it.

    Both are the same in networks without a gate.
    """
    if node.inputs[0] not in binder.values:
        _emit_with_projections(binder, node)
        return
    gate, up = (binder.values[name] for name in node.inputs)
    counted_by = binder.counted_by[node.inputs[0]]
    out = binder.over(node.inputs[0], node.outputs[0], index)
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


def _emit_with_projections(binder: Binder, node: Node) -> None:
    """Emits both projections and the gate as one product (``kernels/linear/gated.py``)."""
    projections = [binder.producers[name] for name in node.inputs]
    source, form = projections[0].inputs[0], rounding(binder, projections[0])
    assert form is not None
    rounded = emit_rounding(binder, source, form, projections[0])
    gate, up = (binder.prepared(each) for each in projections)
    assert isinstance(gate, StreamWeight)
    assert isinstance(up, StreamWeight)
    gate_bias, up_bias = (
        binder.vector(each.inputs[2]) if any(each.inputs[2:]) else None for each in projections
    )
    matrices = len({*node.inputs})
    name, params, extra, reads = kernel_of(binder, gate, rounded, form)
    path = layer_path(binder, gate, form)
    panels, counted_by = panels_of(gate), binder.counted_by[source]
    out = binder.new(node.outputs[0], gate.shape[0], counted_by)
    nbytes = gate.codes.nbytes * matrices
    shared, chunks = shares(panels, nbytes, binder.threads)
    kernel = GATED[name]
    params |= {"activation": node.attrs["activation"], "matrices": matrices}
    arguments = {
        "rows": binder.count(counted_by),
        "bias": gate_bias,
        "up_bias": up_bias,
        "out": out,
        "out_stride": out.stride,
        "n": gate.shape[0],
        "panels": panels,
        "tiles": tiles_of(gate),
        "accumulate": 0,
        "codes": gate.codes,
        "scales": gate.scales,
        "up_codes": up.codes,
        "up_scales": up.scales,
        **extra,
        **in_blocks(binder.isa, path),
    }
    binder.emit(
        kernel,
        params,
        arguments | shared,
        chunks=(ANY_LOGITS if counted_by == LOGIT_ROWS else ONE, chunks, 1),
        reads=reads,
        writes={out.key},
        label=node.name,
    )
    if path.name:
        step = panels_a_chunk(panels, nbytes, binder.threads)
        emit_gemm(binder, projections[0], (kernel, params, arguments, reads), out, step, path)


EMITTER = Emitter(emit_gate, cost=element_cost(GATE))
