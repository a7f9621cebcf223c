"""Attention over the paged cache."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.base import Shape, Support
from edgerun.backends.cpu.binder import ATTENTION, ROWS, Binder, Patch
from edgerun.backends.cpu.emit.emitter import Emitter, Speeds
from edgerun.backends.cpu.operands import WITH_CACHE, Argument
from edgerun.errors import BackendError
from edgerun.graph.ir import Graph, Node
from edgerun.kernels.attention.units import COUNTS, SINGLE, SPLIT, STACKED, AttentionUnits
from edgerun.kernels.run.instructions import Instruction
from edgerun.kernels.run.program import FRAME_WORDS
from edgerun.state import KVCache

HALF_BYTES = 2  # of an element of the cache in half precision, the usual storage
FAMILY = "float/float32"  # attention multiplies float32 with float32
MAX_HEAD_DIM, MAX_GROUP, MAX_QUERIES = 1024, 128, 16384
STACK_ROWS = 8  # rows that attend to a page at a time, of one prompt or with shared pages


def emit_attention(binder: Binder, node: Node, index: int) -> None:
    """Writes keys and values into the cache, attends to it, and combines partial results."""
    attrs = node.attrs
    partial_floats = attrs["num_heads"] * (attrs["head_dim"] + 2)
    units, counts = _units(binder, attrs["window"], partial_floats)
    cached = f"cache{attrs['layer']}"
    _emit_write(binder, node, cached)
    out = binder.new(node.outputs[0], attrs["num_heads"] * attrs["head_dim"], ROWS)
    shape = {
        "head_dim": attrs["head_dim"],
        "group": attrs["num_heads"] // attrs["num_kv_heads"],
        "lanes": binder.lanes_of(attrs["head_dim"]),
    }
    results: dict[str, Argument] = {
        "row_blocks": units.rows,
        "partials": units.partials,
        "out": out,
        "out_stride": out.stride,
    }
    kinds = [("attention", shape, units.single, SINGLE)]
    if binder.shape.rows > 1:
        kinds.append(("attention_many", shape | {"rows": STACK_ROWS}, units.stacked, STACKED))
    parts = [
        _emit_reading(
            binder,
            node,
            (name, params),
            results | {"units": table},
            counts + kind,
            reads={cached},
            # Units write different rows, so the two kinds need not wait for each other.
            writes=f"{out.key}/{name}",
        )
        for name, params, table, kind in kinds
    ]
    binder.emit(
        "attention_combine",
        shape,
        results | {"kv_heads": attrs["num_kv_heads"]},
        chunks=(counts + SPLIT, attrs["num_kv_heads"], 1),
        reads={*parts},
        writes={out.key},
        label=f"{node.name}/combine",
    )


def _cache_arguments(binder: Binder, node: Node) -> dict[str, Argument]:
    """What kernels that use the cache have in common; ``_patch_cache`` fills in the addresses.

    Raises:
        BackendError: the cache has other heads or too few layers.
    """
    kv_heads, head_dim, layer = (node.attrs[name] for name in ("num_kv_heads", "head_dim", "layer"))
    spec = binder.options.cache
    if (kv_heads, head_dim) != (spec.num_kv_heads, spec.head_dim) or layer >= spec.num_layers:
        raise BackendError(
            f"{node.name} keeps {kv_heads} heads of {head_dim} in layer {layer}, which do not fit "
            f"the cache: {spec}"
        )
    return {
        "positions": binder.positions,
        "sequences": binder.sequences,
        "keys": WITH_CACHE,
        "values": WITH_CACHE,
        "key_scales": WITH_CACHE,
        "value_scales": WITH_CACHE,
        "page_table": WITH_CACHE,
        "pages": WITH_CACHE,
        "kv_heads": kv_heads,
        "page_heads": binder.options.cache.num_layers * kv_heads,
    }


def _emit_write(binder: Binder, node: Node, cached: str) -> None:
    """Emits the writing of keys and values into the cache, which counts as a buffer."""
    _, k, v = (binder.values[name] for name in node.inputs)
    head_dim = node.attrs["head_dim"]
    write = binder.emit(
        "cache_write",
        {
            "dtype": binder.options.cache.dtype,
            "head_dim": head_dim,
            "lanes": binder.lanes_of(head_dim),
        },
        _cache_arguments(binder, node)
        | {"rows": binder.count(ROWS), "k": k, "k_stride": k.stride}
        | {"v": v, "v_stride": v.stride},
        chunks=(ROWS, 1, 1),
        reads={k.key, v.key},
        writes={cached},
        label=f"{node.name}/write",
    )
    _patch_cache(binder, write, node.attrs["layer"])


def _emit_reading(
    binder: Binder,
    node: Node,
    kernel: tuple[str, dict[str, int]],
    arguments: dict[str, Argument],
    counted_by: int,
    *,
    reads: set[str],
    writes: str,
) -> str:
    """Emits attention for one kind of units; returns the buffer that it writes."""
    (name, params), attrs = kernel, node.attrs
    q = binder.values[node.inputs[0]]
    attend = binder.emit(
        name,
        params | {"dtype": binder.options.cache.dtype},
        _cache_arguments(binder, node)
        | arguments
        | {"q": q, "q_stride": q.stride}
        | {"scale": np.array([attrs["scale"]], np.float32), "window": attrs["window"]},
        chunks=(counted_by, attrs["num_kv_heads"], 1),
        reads={q.key} | reads,
        writes={writes},
        label=node.name if name == "attention" else f"{node.name}/many",
    )
    _patch_cache(binder, attend, attrs["layer"])
    return writes


def _units(binder: Binder, window: int, partial_floats: int) -> tuple[AttentionUnits, int]:
    """The units of layers with this window, and the word of the frame where their counts begin.

    The frame has room for a few windows; layers beyond see units of the whole context, of which
    those outside their window are empty.
    """
    known = [one for one in binder.keep if isinstance(one, AttentionUnits)]
    last = (FRAME_WORDS - ATTENTION) // COUNTS - 1
    if len(known) >= last and window not in [one.window for one in known]:
        window = 0
    for place, one in enumerate(known):
        if one.window == window:
            return one, ATTENTION + COUNTS * place
    counts = ATTENTION + COUNTS * len(known)
    batch: dict[str, NDArray[Any]] = {
        "rows": binder.count(ROWS),
        "positions": binder.positions,
        "sequences": binder.sequences,
        "counts": binder.count(counts),
    }
    fields = {name: array.ctypes.data for name, array in batch.items()}
    made = AttentionUnits(binder.shape.rows, STACK_ROWS, window, partial_floats, fields)
    binder.keep.append(made)
    binder.before_run.append(made.plan)
    _patch_table(binder, made.arguments, made.names)
    return made, counts


def _patch_table(binder: Binder, block: NDArray[np.int64], names: tuple[str, ...]) -> None:
    binder.patches += [
        Patch(block, names.index("page_table"), lambda cache: cache.page_table.ctypes.data),
        Patch(block, names.index("pages"), lambda cache: cache.page_table.shape[1]),
    ]


def _patch_cache(binder: Binder, made: Instruction, layer: int) -> None:
    block, index_of = made.arguments, made.fields.index

    def of_layer(attribute: str) -> Any:
        def address(cache: KVCache) -> int:
            pool = getattr(cache, attribute)
            return int(pool[0, layer].ctypes.data) if pool.size else 0

        return address

    for attribute in ("keys", "values", "key_scales", "value_scales"):
        binder.patches.append(Patch(block, index_of(attribute), of_layer(attribute)))
    _patch_table(binder, block, made.fields)


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
    """The larger of the times to read keys and values and to multiply, and what starting costs."""
    head_dim, seen = node.attrs["head_dim"], shape.cached + shape.rows
    if window := node.attrs["window"]:
        seen = min(seen, window)
    nbytes = 2 * HALF_BYTES * head_dim * node.attrs["num_kv_heads"] * seen
    macs = 2 * head_dim * node.attrs["num_heads"] * seen * shape.rows
    multiply = speeds.multiply_seconds(macs, FAMILY, shape.rows)
    return speeds.start_seconds() + max(speeds.read_seconds(nbytes), multiply)


EMITTER = Emitter(emit_attention, _supports, _cost)
