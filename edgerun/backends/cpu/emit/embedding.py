"""Embeddings: rows of a copy of the table, or copies of the rows of a large one."""

from __future__ import annotations

from edgerun.backends.base import Support
from edgerun.backends.cpu.binder import ROWS, Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.backends.cpu.operands import Argument
from edgerun.backends.cpu.staged import StagedRows, can_stage, check_ids, copied
from edgerun.formats.base import PackedWeight
from edgerun.graph.constants import check_many_scales
from edgerun.graph.ir import Graph, Node


def emit_embedding(binder: Binder, node: Node, index: int) -> None:
    """Reads the rows of the token ids from a copy of the table, or copies of a large one's."""
    table, ids = binder.graph.matrix(node.inputs[1]), binder.ids
    batch_ids, frame = binder.ids, binder.frame
    if isinstance(table, PackedWeight):
        check_many_scales(table)
    if can_stage(table):
        staged = StagedRows(table, binder.shape.rows)
        binder.prepare_stage(lambda: staged.fetch(batch_ids[: frame[ROWS]]))
        table, ids = staged.table, staged.ids
    else:
        table, rows = copied(table), table.shape[0]
        binder.prepare_stage(lambda: check_ids(batch_ids[: frame[ROWS]], rows))
    width = table.shape[1]
    out = binder.new(node.outputs[0], width, ROWS)
    arguments: dict[str, Argument] = {
        "rows": binder.count(ROWS),
        "ids": ids,
        "out": out,
        "width": width,
        "out_stride": out.stride,
        "vocab": table.shape[0],
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
    )


def _supports(graph: Graph, node: Node) -> Support:
    table = graph.matrix(node.inputs[1])
    if isinstance(table, PackedWeight) and not table.is_centred:
        return Support(False, "a table whose blocks have zero points or offsets of their own")
    return Support(True)


EMITTER = Emitter(emit_embedding, _supports)
