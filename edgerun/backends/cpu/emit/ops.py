"""How each op of the schema becomes kernel calls."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgerun.backends.cpu.binder import LOGIT_ROWS, ROWS, Binder, Rounding
from edgerun.backends.cpu.emit.attention import emit_attention, emit_rotary
from edgerun.backends.cpu.emit.linear import (
    emit_linear,
    rounding,
    rounding_arguments,
    take_rounded,
)
from edgerun.backends.cpu.operands import Argument
from edgerun.backends.cpu.staged import StagedRows, can_stage, check_ids, copied
from edgerun.errors import BackendError
from edgerun.formats.base import PackedWeight
from edgerun.graph.constants import check_many_scales
from edgerun.graph.ir import Node

PIECE_ELEMENTS = 2048
# Kernels that normalise and round in one pass, by the rounding they replace.
FUSED = {"quantize_row": "rms_norm_row", "quantize_block": "rms_norm_block"}


def emit_embedding(binder: Binder, node: Node, index: int) -> None:
    """Reads the rows of the token ids from a copy of the table, or copies of a large one's."""
    table, ids = binder.graph.constants[node.inputs[1]], binder.ids
    if isinstance(table, PackedWeight):
        check_many_scales(table)
    if can_stage(table):
        staged = StagedRows(table, binder.shape.rows)
        binder.before_run.append(lambda: staged.fetch(binder.ids[: binder.frame[ROWS]]))
        table, ids = staged.table, staged.ids
    else:
        table, rows = copied(table), table.shape[0]
        binder.before_run.append(lambda: check_ids(binder.ids[: binder.frame[ROWS]], rows))
    width = table.shape[1]
    out = binder.new(node.outputs[0], width, ROWS)
    arguments: dict[str, Argument] = {
        "rows": binder.count(ROWS),
        "ids": ids,
        "out": out,
        "width": width,
        "out_stride": out.stride,
    }
    if isinstance(table, PackedWeight):
        name, params = "embedding_block", {"bits": table.bits, "block": table.block}
        arguments |= {"codes": table.codes, "scales": table.scales}
    else:
        name, params = "embedding_dense", {}
        arguments |= {"table": table}
    binder.emit(
        name,
        params,
        arguments,
        chunks=(ROWS, 1, 1),
        reads=set(),
        writes={out.key},
        label=node.name,
        sizes={"vocab": table.shape[0]},
    )


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
    same = binder.dies_at(source, index)
    out = binder.rename(source, out_name) if same else binder.new(out_name, x.width, counted_by)
    arguments |= {"out": out, "out_stride": out.stride, "groups": x.width // len(weight)}
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
    wanted = {rounding(binder, reader) for reader in binder.readers.get(value, [])}
    return wanted.pop() if len(wanted) == 1 and value not in binder.graph.outputs else None


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


def emit_add(binder: Binder, node: Node, index: int) -> None:
    """Adds two values over whole rows, padding included."""
    a, b = (binder.values[name] for name in node.inputs)
    counted_by = binder.counted_by[node.inputs[0]]
    out = binder.new(node.outputs[0], a.width, counted_by)
    binder.emit(
        "add",
        {"lanes": binder.isa.float_lanes},
        {
            "rows": binder.count(counted_by),
            "a": a,
            "b": b,
            "out": out,
            "width": a.stride,
        },
        chunks=(counted_by, 1, 1),
        reads={a.key, b.key},
        writes={out.key},
        label=node.name,
    )


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


EMITTERS: dict[str, Callable[[Binder, Node, int], None]] = {
    "embedding": emit_embedding,
    "rms_norm": emit_rms_norm,
    "linear": emit_linear,
    "rotary": emit_rotary,
    "attention": emit_attention,
    "gate": emit_gate,
    "add": emit_add,
    "select_rows": emit_select_rows,
}
