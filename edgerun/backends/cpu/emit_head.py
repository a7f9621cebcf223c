"""Remembers how the head was bound, so that a screen can take its place for single rows."""

from __future__ import annotations

from edgerun.backends.cpu.binder import ANY_LOGITS, Binder, Head
from edgerun.backends.cpu.emit_linear import emit_linear, rounding
from edgerun.backends.cpu.weights import Prepared
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Node
from edgerun.graph.ops import LOGITS
from edgerun.kernels.layout import StreamWeight


def emit_linear_or_head(binder: Binder, node: Node, index: int) -> None:
    """Emits a linear layer; if it is the head, and one that can be screened, keeps it."""
    emit_linear(binder, node, index)
    if node.outputs[0] == LOGITS:
        binder.head = _head(binder, node, binder.prepared(node))


def _head(binder: Binder, node: Node, stream: Prepared) -> Head | None:
    form = rounding(binder, node)
    weight = binder.graph.constants[node.inputs[1]]
    rounded = binder.rounded.get((node.inputs[0], form)) if form is not None else None
    made = binder.instructions[-1]
    others = [one for one in binder.instructions[:-1] if one.size == ANY_LOGITS]
    if (
        others  # the head alone may be left out of a run
        or rounded is None
        or rounded.scales is None
        or form is None
        or form.kernel != "quantize_block"
        or len(node.inputs) > 2
        or made.label != node.name
        or not isinstance(weight, PackedWeight)
        or not isinstance(stream, StreamWeight)
        or (weight.bits, stream.bits, weight.zeros) != (8, 8, None)
        or weight.shape[1] % weight.block
    ):
        return None
    return Head(made, weight, stream, rounded, binder.values[LOGITS])
