"""Rotary embedding."""

from __future__ import annotations

from edgerun.backends.base import Support
from edgerun.backends.cpu.binder import ROWS, Binder, Patch
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.backends.cpu.operands import WITH_CACHE, Argument
from edgerun.backends.cpu.rotary_tables import RotaryTables
from edgerun.errors import BackendError
from edgerun.graph.ir import Graph, Node
from edgerun.state import SequenceStore


def emit_rotary(binder: Binder, node: Node, index: int) -> None:
    """Rotates in place, or a copy if the value is read again."""
    source, output = node.inputs[0], node.outputs[0]
    if binder.dies_at(source, index):
        x = binder.rename(source, output)
    else:
        x = binder.copy(source, output, node.name)
    head_dim, factor = node.attrs["head_dim"], node.attrs["factor"]
    inv_freq = binder.graph.array(node.inputs[2])
    if 2 * len(inv_freq) != head_dim or x.width % head_dim:
        raise BackendError(
            f"{node.name} rotates rows of {x.width} in heads of {head_dim} by {len(inv_freq)} "
            "angles, which do not fit"
        )
    tables = next((entry for entry in binder.keep if isinstance(entry, RotaryTables)), None)
    if tables is None:
        tables = RotaryTables()
        binder.keep.append(tables)
        reach, positions, frame = tables.reach, binder.positions, binder.frame
        binder.before_run.append(lambda: reach(positions[: frame[ROWS]]))
    shared, counted_by = tables, binder.counted_by[output]
    arguments: dict[str, Argument] = {
        "rows": binder.count(counted_by),
        "positions": binder.rows_of(counted_by)[0],
        "table": WITH_CACHE,
        "x": x,
        "x_stride": x.stride,
        "heads": x.width // head_dim,
        "head_dim": head_dim,
    }
    step = binder.emit(
        "rotary",
        {"lanes": binder.lanes_of(head_dim // 2)},
        arguments,
        chunks=(counted_by, 1, 1),
        reads={x.key},
        writes={x.key},
        label=node.name,
    )

    def table(cache: SequenceStore) -> int:
        return shared.address(node.inputs[2], inv_freq, factor, cache.context)

    binder.patches.append(Patch(step.arguments, step.fields.index("table"), table))


def _supports(graph: Graph, node: Node) -> Support:
    head_dim = node.attrs["head_dim"]
    return Support(head_dim % 2 == 0, f"head_dim {head_dim} is odd" if head_dim % 2 else "")


EMITTER = Emitter(emit_rotary, _supports)
