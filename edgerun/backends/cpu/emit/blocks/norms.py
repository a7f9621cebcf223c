"""Norms that round in the same pass what their readers want rounded."""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.backends.cpu.binder import Binder, Rounding
from edgerun.backends.cpu.emit.linear import rounding_arguments, take_rounded
from edgerun.backends.cpu.operands import Argument
from edgerun.graph.ir import Node

# What is behind a norm's name in the kernel that rounds as well, by the kernel that only rounds.
FUSED = {"quantize_row": "row", "quantize_block": "block"}


def emit_rounded(binder: Binder, node: Node, arguments: Mapping[str, Argument]) -> bool:
    """Emits a norm over whole rows that rounds them, if all who read it want one int8 form.

    Args:
        binder: takes it.
        node: the norm, whose op is called as its kernel is.
        arguments: of the kernel, those of rounding left out.

    Returns:
        Whether it did.
    """
    source, out_name = node.inputs[0], node.outputs[0]
    x, counted_by = binder.values[source], binder.counted_by[source]
    form = _common_rounding(binder, out_name)
    if form is None or form.kernel not in FUSED:
        return False
    lanes, rounded = binder.isa.float_lanes, take_rounded(binder, out_name, form, counted_by)
    binder.emit(
        f"{node.op}_{FUSED[form.kernel]}",
        {"block": form.block, "lanes": lanes} if form.block else {"lanes": lanes},
        {**arguments, **rounding_arguments(form, rounded)},
        chunks=(counted_by, 1, 1),
        reads={x.key},
        writes=rounded.keys(),
        label=node.name,
    )
    return True


def _common_rounding(binder: Binder, value: str) -> Rounding | None:
    """The one rounded form in which everything reads a value; None when there is none."""
    forms = {
        binder.emitters[reader.op].rounding(binder, reader)
        for reader in binder.readers.get(value, [])
    }
    return forms.pop() if len(forms) == 1 and value not in binder.graph.outputs else None
