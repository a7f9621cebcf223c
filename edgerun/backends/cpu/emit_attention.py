"""Rotary embedding and attention over the paged cache."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.binder import ROWS, Binder, Patch
from edgerun.graph.ir import Node
from edgerun.kernels.instructions import Instruction
from edgerun.kernels.isa import VECTOR_BYTES
from edgerun.state import KVCache

ROWS_TOGETHER = 8  # rows of a prompt that attend to a page at a time


def rotary_table(
    inv_freq: NDArray[np.float32], positions: int, factor: float
) -> NDArray[np.float32]:
    """Cosines, then sines, of every position: float32 ``[positions, 2 * len(inv_freq)]``."""
    angles = np.arange(positions, dtype=np.float32)[:, None] * inv_freq.astype(np.float32)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * np.float32(factor)


class RotaryTables:
    """Tables for the context of whichever cache is bound; equal ones are shared."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, float, int], NDArray[np.float32]] = {}

    def address(self, name: str, inv_freq: NDArray[np.float32], factor: float, context: int) -> int:
        """Address of the table for a context length."""
        key = (name, factor, context)
        if key not in self._tables:
            self._tables[key] = rotary_table(inv_freq, context, factor)
        return int(self._tables[key].ctypes.data)


def emit_rotary(binder: Binder, node: Node, index: int) -> None:
    """Rotates in place, or a copy if the value is read again."""
    source, output = node.inputs[0], node.outputs[0]
    if binder.dies_at(source, index):
        x = binder.rename(source, output)
    else:
        x = binder.copy(source, output, node.name)
    head_dim, factor = node.attrs["head_dim"], node.attrs["factor"]
    inv_freq = binder.graph.array(node.inputs[2])
    tables = next((one for one in binder.keep if isinstance(one, RotaryTables)), None)
    if tables is None:
        tables = RotaryTables()
        binder.keep.append(tables)
    shared = tables
    fields = {
        "rows": binder.rows_address(ROWS),
        "positions": binder.positions.ctypes.data,
        "table": 0,
        "x": x.address,
        "x_stride": x.stride,
        "heads": x.width // head_dim,
    }
    made = binder.emit(
        "rotary",
        {"head_dim": head_dim, "lanes": _lanes(binder, head_dim // 2)},
        fields,
        chunks=(ROWS, 1, 1),
        reads={x.key},
        writes={x.key},
        label=node.name,
    )

    def table(cache: KVCache) -> int:
        return shared.address(node.inputs[2], inv_freq, factor, cache.context)

    binder.patches.append(Patch(made.arguments, made.fields.index("table"), table))


def emit_attention(binder: Binder, node: Node, index: int) -> None:
    """Writes keys and values into the cache, then attends to it."""
    q, k, v = (binder.values[name] for name in node.inputs)
    attrs = node.attrs
    head_dim, kv_heads = attrs["head_dim"], attrs["num_kv_heads"]
    layer, dtype = attrs["layer"], binder.options.cache.dtype
    lanes = _lanes(binder, head_dim)
    common = {
        "rows": binder.rows_address(ROWS),
        "positions": binder.positions.ctypes.data,
        "sequences": binder.sequences.ctypes.data,
        "keys": 0,
        "values": 0,
        "key_scales": 0,
        "value_scales": 0,
        "page_table": 0,
        "pages": 0,
        "kv_heads": kv_heads,
        "page_heads": binder.options.cache.num_layers * kv_heads,
    }
    cached = f"cache{layer}"
    write = binder.emit(
        "cache_write",
        {"dtype": dtype, "head_dim": head_dim, "lanes": lanes},
        common | {"k": k.address, "k_stride": k.stride, "v": v.address, "v_stride": v.stride},
        chunks=(ROWS, 1, 1),
        reads={k.key, v.key},
        writes={cached},
        label=f"{node.name}/write",
    )
    out = binder.new(node.outputs[0], attrs["num_heads"] * head_dim, ROWS)
    scale = np.array([attrs["scale"]], np.float32)
    binder.keep.append(scale)
    group = attrs["num_heads"] // kv_heads
    # Decode shares a row's heads among the threads; prefill shares a page among rows.
    several = binder.options.max_rows > 1
    params = {"dtype": dtype, "head_dim": head_dim, "group": group, "lanes": lanes}
    attend = binder.emit(
        "attention_many" if several else "attention",
        params | ({"rows": ROWS_TOGETHER} if several else {}),
        common
        | {
            "q": q.address,
            "q_stride": q.stride,
            "out": out.address,
            "out_stride": out.stride,
            "scale": scale.ctypes.data,
            "window": attrs["window"],
        },
        chunks=(ROWS, 1, ROWS_TOGETHER) if several else (ROWS, kv_heads, 1),
        reads={q.key, cached},
        writes={out.key},
        label=node.name,
    )
    for made in (write, attend):
        _patch_cache(binder, made, layer)


def _patch_cache(binder: Binder, made: Instruction, layer: int) -> None:
    block, index_of = made.arguments, made.fields.index

    def of_layer(attribute: str) -> Any:
        def address(cache: KVCache) -> int:
            pool = getattr(cache, attribute)
            return int(pool[0, layer].ctypes.data) if pool.size else 0

        return address

    for attribute in ("keys", "values", "key_scales", "value_scales"):
        binder.patches.append(Patch(block, index_of(attribute), of_layer(attribute)))
    binder.patches += [
        Patch(block, index_of("page_table"), lambda cache: cache.page_table.ctypes.data),
        Patch(block, index_of("pages"), lambda cache: cache.page_table.shape[1]),
    ]


def _lanes(binder: Binder, size: int) -> int:
    """The widest float vector that divides ``size``, at least one lane."""
    lanes = VECTOR_BYTES[binder.isa] // 4
    while size % lanes:
        lanes //= 2
    return lanes
