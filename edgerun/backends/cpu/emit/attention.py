"""Rotary embedding and attention over the paged cache."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.binder import ATTENTION, ROWS, Binder, Patch
from edgerun.backends.cpu.operands import WITH_CACHE, Argument
from edgerun.backends.cpu.rotary_tables import RotaryTables
from edgerun.errors import BackendError
from edgerun.graph.ir import Node
from edgerun.kernels.attention.units import COUNTS, SINGLE, SPLIT, STACKED, AttentionUnits
from edgerun.kernels.run.instructions import Instruction
from edgerun.kernels.run.program import FRAME_WORDS
from edgerun.state import KVCache

STACK_ROWS = 8  # rows that attend to a page at a time, of one prompt or with shared pages


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
    tables = next((one for one in binder.keep if isinstance(one, RotaryTables)), None)
    if tables is None:
        tables = RotaryTables()
        binder.keep.append(tables)
        reach = tables.reach
        binder.before_run.append(lambda: reach(binder.positions[: binder.frame[ROWS]]))
    shared = tables
    arguments: dict[str, Argument] = {
        "rows": binder.count(ROWS),
        "positions": binder.positions,
        "table": WITH_CACHE,
        "x": x,
        "x_stride": x.stride,
        "heads": x.width // head_dim,
    }
    made = binder.emit(
        "rotary",
        {"head_dim": head_dim, "lanes": _lanes(binder, head_dim // 2)},
        arguments,
        chunks=(ROWS, 1, 1),
        reads={x.key},
        writes={x.key},
        label=node.name,
    )

    def table(cache: KVCache) -> int:
        return shared.address(node.inputs[2], inv_freq, factor, cache.context)

    binder.patches.append(Patch(made.arguments, made.fields.index("table"), table))


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
        "lanes": _lanes(binder, attrs["head_dim"]),
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
            "lanes": _lanes(binder, head_dim),
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


def _lanes(binder: Binder, size: int) -> int:
    """The widest float vector that divides ``size``, at least one lane."""
    lanes = binder.isa.float_lanes
    while size % lanes:
        lanes //= 2
    return lanes
