"""Convolutions over what the paged cache holds."""

from __future__ import annotations

from edgerun.backends.cpu.binder import ROWS, Binder
from edgerun.backends.cpu.emit.attention import patch_cache
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.backends.cpu.operands import WITH_CACHE, Argument
from edgerun.errors import BackendError
from edgerun.graph.ir import Node
from edgerun.ops.registry import OPS
from edgerun.state import AttentionState
from edgerun.state.spec import attention_of

_PAGES = ("key_data", "page_table", "pages", "page_heads")


def emit_short_conv(binder: Binder, node: Node, index: int) -> None:
    """Writes the inputs of all rows into the cache, and reads those of the latest tokens."""
    gate, value, out = (binder.values[name] for name in node.inputs[:3])
    width, cached = node.attrs["width"], f"cache{node.attrs['layer']}"
    counted_by = binder.counted_by[node.inputs[2]]
    result = binder.new(node.outputs[0], width, counted_by)
    _emit(
        binder,
        node,
        "short_conv_write",
        ROWS,
        {"gate": gate, "gate_stride": gate.stride, "value": value, "value_stride": value.stride},
        reads={gate.key, value.key},
        writes={cached},
    )
    _emit(
        binder,
        node,
        "short_conv",
        counted_by,
        {
            "out": out,
            "out_stride": out.stride,
            "taps": binder.vector(node.inputs[3]),
            "count": node.attrs["count"],
            "result": result,
            "result_stride": result.stride,
        },
        reads={out.key, cached},
        writes={result.key},
    )


def _emit(
    binder: Binder,
    node: Node,
    kernel: str,
    counted_by: int,
    arguments: dict[str, Argument],
    *,
    reads: set[str],
    writes: set[str],
) -> None:
    positions, sequences = binder.rows_of(counted_by)
    step = binder.emit(
        kernel,
        {"lanes": binder.isa.float_lanes},
        {
            "rows": binder.count(counted_by),
            "positions": positions,
            "sequences": sequences,
            "width": node.attrs["width"],
            **arguments,
            **dict.fromkeys(_PAGES, WITH_CACHE),
        },
        chunks=(counted_by, 1, 1),
        reads=reads,
        writes=writes,
        label=node.name if kernel == node.op else f"{node.name}/write",
    )
    patch_cache(binder, step.arguments, step.fields, _state_of(binder, node))


def _state_of(binder: Binder, node: Node) -> AttentionState:
    declare = OPS[node.op].state
    declared = declare(node.attrs) if declare else None
    state = attention_of(binder.options.states, node.attrs["layer"])
    if state is None or state != declared:
        raise BackendError(f"{node.name} keeps {declared}, and the store has {state} for it")
    return state


EMITTER = Emitter(emit_short_conv)
