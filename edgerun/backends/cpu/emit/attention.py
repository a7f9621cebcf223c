"""Attention over the paged cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.base import Shape, Support
from edgerun.backends.cpu.binder import ATTENTION, ROWS, Binder, Patch
from edgerun.backends.cpu.emit.emitter import Emitter, Speeds
from edgerun.backends.cpu.operands import WITH_CACHE, Argument
from edgerun.errors import BackendError, UnsupportedError
from edgerun.graph.ir import Graph, Node
from edgerun.kernels.attention.planner import AttentionUnits
from edgerun.kernels.attention.units import (
    CACHE,
    CODECS,
    COUNTS,
    DEEP,
    PROMPT_ROWS,
    SINGLE,
    SPLIT,
    STACK_ROWS,
    STACKED,
    TURNED,
    stack_rows,
)
from edgerun.kernels.isa import bfloat16_multiplier, selected_isa
from edgerun.kernels.lang.isa import Isa
from edgerun.kernels.run.program import FRAME_WORDS
from edgerun.machine.devices import ELEMENTS as WRITE
from edgerun.state import AttentionState, SequenceStore
from edgerun.state.paged import PAGE_TOKENS
from edgerun.state.spec import attention_of

HALF_BYTES = 2  # of an element of the cache in half precision, the usual storage
MAX_HEAD_DIM, MAX_GROUP, MAX_QUERIES = 1024, 128, 16384
TILED_QUERIES = 128  # that meet a page at a time, once it is in the order of tiles
MAX_TILED_DIM = 256
PAGE_TILES = "page tiles"  # memory that instructions share, as if it were a buffer


@dataclass(frozen=True, slots=True)
class _Planned:
    """Units of layers that are equal in what they keep, see and compute, and for which rows."""

    kind: tuple[AttentionState, int, int, int, int]
    units: AttentionUnits


def emit_attention(binder: Binder, node: Node, index: int, shares: int = 1) -> None:
    """Writes keys and values into the cache, attends to it, and combines partial results.

    In float32 the queries of a key head are computed in so many ``shares``.
    """
    emit_write(binder, node, _cached(node))
    _emit_attending(binder, node, shares)


def emit_shared_attention(binder: Binder, node: Node, index: int) -> None:
    """Attends to what an earlier node has written, and combines partial results."""
    _emit_attending(binder, node, 1)


def _cached(node: Node) -> str:
    """What a layer's keys and values are called, which count as a buffer."""
    return f"cache{node.attrs['layer']}"


def _emit_attending(binder: Binder, node: Node, shares: int) -> None:
    """Emits all that reads the cache."""
    shares = 1 if _is_tiled(binder, node) else shares
    attrs, kv_heads = node.attrs, node.attrs["num_kv_heads"] * shares
    counted_by = binder.counted_by[node.inputs[0]]
    partial_floats = attrs["num_heads"] * (attrs["head_dim"] + 2)
    stack = _planned_rows(binder, node)
    tiles = _tiles_of_pages(binder, node)
    room = 0 if tiles is None else len(tiles)
    turned: dict[str, Argument] = {"room": room, "turned": tiles}
    units, counts = _units(
        binder, state_of(binder, node), partial_floats, counted_by, stack, room, kv_heads
    )
    cached = _cached(node)
    out = binder.new(node.outputs[0], attrs["num_heads"] * attrs["head_dim"], counted_by)
    shape = {
        "head_dim": attrs["head_dim"],
        "group": attrs["num_heads"] // kv_heads,
        "lanes": binder.lanes_of(attrs["head_dim"]),
    }
    results: dict[str, Argument] = {
        "row_blocks": units.rows,
        "partials": units.partials,
        "out": out,
        "out_stride": out.stride,
        "kv_heads": kv_heads,
        "sinks": binder.vector(node.inputs[3]) if any(node.inputs[3:]) else None,
    }
    kinds = [("attention", shape, units.single, SINGLE)]
    if binder.shape.rows > 1:
        kinds.append((*_of_many(binder, node, shape), units.stacked, STACKED))
    if tiles is not None:
        emit_turning(binder, node, turned | {"turned_pages": units.turned}, counts + TURNED, cached)
    for name, params, table, kind in kinds:
        # Units write different rows, so the two kinds need not wait for each other; for what may
        # still read the buffer the first one waits.
        writes = {f"{out.key}/{name}"} | ({out.key} if kind == SINGLE else set())
        _emit_reading(
            binder,
            node,
            (name, params),
            results
            | {"units": table}
            | (turned if name == "attention_bfloat16" else {"shares": shares}),
            counts + kind,
            reads={cached} | ({PAGE_TILES} if name == "attention_bfloat16" else set()),
            writes=writes,
        )
    binder.emit(
        "attention_combine",
        {"lanes": shape["lanes"]},
        results | {"group": shape["group"], "head_dim": shape["head_dim"]},
        chunks=(counts + SPLIT, kv_heads, 1),
        reads={f"{out.key}/{name}" for name, *_ in kinds},
        writes={out.key},
        label=f"{node.name}/combine",
    )


def _of_many(binder: Binder, node: Node, shape: dict[str, int]) -> tuple[str, dict[str, Any]]:
    """The kernel for units of several rows, and its compile-time constants."""
    params = shape | {"stack": _stack_of(binder, node)}
    if not _is_tiled(binder, node):
        return "attention_many", params
    return "attention_bfloat16", params | {"multiplier": bfloat16_multiplier(binder.isa)}


def why_exact(node: Node, isa: Isa) -> str:
    """Why a node's products for prompts stay in float32; nothing if bfloat16 does."""
    head_dim = node.attrs["head_dim"]
    if not bfloat16_multiplier(isa):
        return f"there are no products of bfloat16 among the instructions in use, {isa.name}"
    if head_dim % DEEP or head_dim > MAX_TILED_DIM:
        return f"head_dim {head_dim} is no multiple of {DEEP} up to {MAX_TILED_DIM}"
    return ""


def _tiles_of_pages(binder: Binder, node: Node) -> NDArray[np.uint8] | None:
    """Room for pages in the order of tiles; None if none is needed, or none is there."""
    if not _is_tiled(binder, node) or binder.page_tiles is None or binder.shape.rows == 1:
        return None
    return binder.page_tiles.for_heads(node.attrs["num_kv_heads"], node.attrs["head_dim"])


def emit_turning(
    binder: Binder, node: Node, turned: dict[str, Argument], counted_by: int, cached: str
) -> None:
    """Emits what turns pages once for the units of a prompt."""
    attrs, state = node.attrs, state_of(binder, node)
    step = binder.emit(
        "turn_pages",
        {
            "dtype": state.codec,
            "head_dim": attrs["head_dim"],
            "multiplier": bfloat16_multiplier(binder.isa),
        },
        _cache_arguments(binder, node, node.inputs[0]) | turned,
        chunks=(counted_by, attrs["num_kv_heads"], 1),
        reads={cached},
        writes={PAGE_TILES},
        label=f"{node.name}/turning",
    )
    patch_cache(binder, step.arguments, step.fields, state)


def _is_tiled(binder: Binder, node: Node) -> bool:
    return binder.attends_fast and not why_exact(node, binder.isa)


def _stack_of(binder: Binder, node: Node) -> int:
    """Most rows of a unit that the kernel for several rows has room for."""
    group, head_dim = node.attrs["num_heads"] // node.attrs["num_kv_heads"], node.attrs["head_dim"]
    if _is_tiled(binder, node):
        return max(STACK_ROWS, TILED_QUERIES // int(group))
    codec = state_of(binder, node).codec
    return stack_rows(codec, head_dim, group, binder.lanes_of(head_dim), binder.shape.rows)


def _planned_rows(binder: Binder, node: Node) -> int:
    """Most rows of a unit: few in calls of few rows, so that there are units for all threads."""
    is_short = binder.shape.rows < PROMPT_ROWS and not _is_tiled(binder, node)
    return min(_stack_of(binder, node), STACK_ROWS) if is_short else _stack_of(binder, node)


def _cache_arguments(binder: Binder, node: Node, value: str) -> dict[str, Argument]:
    """What kernels that use the cache have in common; ``patch_cache`` fills in the addresses.

    ``value`` is the one whose rows they take.
    """
    positions, sequences = binder.rows_of(binder.counted_by[value])
    return {
        "positions": positions,
        "sequences": sequences,
        **dict.fromkeys(CACHE, WITH_CACHE),
        "kv_heads": node.attrs["num_kv_heads"],
    }


def emit_write(binder: Binder, node: Node, cached: str) -> None:
    """Emits the writing of keys and values into the cache, which counts as a buffer."""
    k, v = (binder.values[name] for name in node.inputs[1:3])
    head_dim, state = node.attrs["head_dim"], state_of(binder, node)
    write = binder.emit(
        "cache_write",
        {"dtype": state.codec, "lanes": binder.lanes_of(head_dim)},
        _cache_arguments(binder, node, node.inputs[1])
        | {"rows": binder.count(ROWS), "k": k, "k_stride": k.stride}
        | {"v": v, "v_stride": v.stride, "head_dim": head_dim},
        chunks=(ROWS, 1, 1),
        reads={k.key, v.key},
        writes={cached},
        label=f"{node.name}/write",
    )
    patch_cache(binder, write.arguments, write.fields, state)


def _emit_reading(
    binder: Binder,
    node: Node,
    kernel: tuple[str, dict[str, int]],
    arguments: dict[str, Argument],
    counted_by: int,
    *,
    reads: set[str],
    writes: set[str],
) -> None:
    """Emits attention for one kind of units."""
    (name, params), attrs, state = kernel, node.attrs, state_of(binder, node)
    q = binder.values[node.inputs[0]]
    attend = binder.emit(
        name,
        params | {"dtype": state.codec},
        _cache_arguments(binder, node, node.inputs[0])
        | arguments
        | {"q": q, "q_stride": q.stride}
        | {"scale": np.array([attrs["scale"]], np.float32), "window": attrs["window"]}
        | {"softcap": np.array([attrs["softcap"]], np.float32) if attrs["softcap"] else None},
        chunks=(counted_by, attrs["num_heads"] // params["group"], 1),
        reads={q.key} | reads,
        writes=writes,
        label=node.name if name == "attention" else f"{node.name}/many",
    )
    patch_cache(binder, attend.arguments, attend.fields, state)


def state_of(binder: Binder, node: Node) -> AttentionState:
    """What a node keeps.

    Raises:
        BackendError: the store keeps something else for its layer.
        UnsupportedError: no kernel reads what the codec stores.
    """
    attrs, state = node.attrs, attention_of(binder.options.states, node.attrs["layer"])
    head_dim = attrs["head_dim"]
    declared = (attrs["num_kv_heads"], head_dim, head_dim, attrs["window"])
    if state is None or declared != (
        state.kv_heads,
        state.key_dim,
        state.value_dim,
        state.window,
    ):
        raise BackendError(
            f"{node.name} keeps {attrs['num_kv_heads']} heads of {head_dim} in a window of "
            f"{attrs['window']}, which do not fit what is stored for it: {state}"
        )
    if state.codec not in CODECS:
        raise UnsupportedError(
            f"the back-end 'cpu' has no kernels for keys and values in {state.codec}: choose "
            f"kv_cache from {', '.join(CODECS)}, or the back-end 'reference'"
        )
    return state


def _units(
    binder: Binder,
    state: AttentionState,
    partial_floats: int,
    counted_by: int,
    stack: int,
    room: int,
    kv_heads: int,
) -> tuple[AttentionUnits, int]:
    """The units of layers of a geometry, and the word of the frame where their counts begin.

    Raises:
        UnsupportedError: the layers have more geometries than the frame has words for.
    """
    kind = (replace(state, name=""), partial_floats, counted_by, stack, kv_heads)
    planned = [entry for entry in binder.keep if isinstance(entry, _Planned)]
    for place, entry in enumerate(planned):
        if entry.kind == kind:
            return entry.units, ATTENTION + COUNTS * place
    counts = ATTENTION + COUNTS * len(planned)
    if counts + COUNTS > FRAME_WORDS:
        raise UnsupportedError(
            f"the attention layers of this model have more than {len(planned)} different windows "
            "and shapes, for which the back-end 'cpu' has no room: use the back-end 'reference'"
        )
    positions, sequences = binder.rows_of(counted_by)
    batch: dict[str, NDArray[Any]] = {
        "rows": binder.count(counted_by),
        "positions": positions,
        "sequences": sequences,
        "counts": binder.count(counts),
    }
    fields = {name: array.ctypes.data for name, array in batch.items()}
    team = kv_heads, binder.threads
    units = AttentionUnits(
        binder.shape.rows, stack, state.window, partial_floats, *team, fields, room
    )
    binder.keep.append(_Planned(kind, units))
    binder.before_run.append(units.plan)
    patch_cache(binder, units.arguments, units.names, state)
    return units, counts


def patch_cache(
    binder: Binder, block: NDArray[np.int64], fields: tuple[str, ...], state: AttentionState
) -> None:
    """Lets those of the fields that say where a layer's pages are be filled in with the store."""

    def value_of(field: str) -> Callable[[SequenceStore], int]:
        return lambda store: store.pool(state.name).fields(state.name).get(field, 0)

    for field in set(CACHE).intersection(fields):
        binder.patches.append(Patch(block, fields.index(field), value_of(field)))


def _supports(graph: Graph, node: Node) -> Support:
    """The queries that share a key head lie on the stack of a thread."""
    head_dim = node.attrs["head_dim"]
    group = node.attrs["num_heads"] // node.attrs["num_kv_heads"]
    if head_dim % 2:
        return Support(False, f"head_dim {head_dim} is odd")
    if head_dim > MAX_HEAD_DIM or group > MAX_GROUP or group * head_dim > MAX_QUERIES:
        return Support(False, f"{group} query heads of {head_dim} elements to a key head")
    return Support(True)


def _cost(graph: Graph, node: Node, shape: Shape, speeds: Speeds) -> float:
    """The larger of the times to read keys and values and to multiply, and what starting costs.

    Pages are computed whole, what lies behind a row's own token included. In bfloat16 they are
    turned besides.
    """
    kv_width = node.attrs["head_dim"] * node.attrs["num_kv_heads"]
    written = speeds.element_seconds(2 * kv_width * shape.rows, WRITE, shape.rows)
    return cost_of_reading(graph, node, shape, speeds) + speeds.start_seconds() + written


def cost_of_reading(graph: Graph, node: Node, shape: Shape, speeds: Speeds) -> float:
    """The same without what writes keys and values."""
    attrs, rows = node.attrs, shape.rows
    head_dim, kv_width = attrs["head_dim"], attrs["head_dim"] * attrs["num_kv_heads"]
    seen = seen_in_pages(shape.cached, rows, attrs["window"])
    macs = 2 * head_dim * attrs["num_heads"] * seen
    fast = speeds.attends_fast and not why_exact(node, selected_isa())
    multiply = speeds.attention_seconds(macs, head_dim, rows, fast=fast)
    read = speeds.read_seconds(2 * HALF_BYTES * kv_width * seen / rows)
    starts = 2 if rows == 1 else 4 if fast else 3
    return speeds.start_seconds(starts) + max(read, multiply)


def seen_in_pages(cached: int, rows: int, window: int) -> int:
    """Tokens of the pages that so many rows after cached tokens attend to, for all rows together.

    >>> seen_in_pages(0, 64, 0), seen_in_pages(0, 65, 0)
    (4096, 4224)
    """
    seen, position = 0, cached
    while position < cached + rows:
        end = min((position // PAGE_TOKENS + 1) * PAGE_TOKENS, cached + rows)
        pages = position // PAGE_TOKENS + 1
        if window:
            pages = min(pages, -(-window // PAGE_TOKENS) + 1)
        seen += (end - position) * pages * PAGE_TOKENS
        position = end
    return seen


EMITTER = Emitter(emit_attention, _supports, _cost)
