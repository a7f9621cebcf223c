"""Ternary linear layers of many rows: by lookup (``kernels/linear/lookup.py``), or expanded."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.binder import ONE, Binder, Rounded
from edgerun.backends.cpu.buffers import Buffer, aligned_zeros
from edgerun.backends.cpu.operands import Argument
from edgerun.backends.cpu.row_paths import LOOKUP_TOKENS as TOKENS
from edgerun.backends.cpu.row_paths import block_tokens
from edgerun.backends.cpu.weights import Prepared
from edgerun.graph.ir import Node
from edgerun.kernels.layouts.stream import DWORD, StreamWeight
from edgerun.kernels.layouts.trits import TILE, TritWeight
from edgerun.machine.row_times import BlockPath

CELLS = 65536  # of sums a chunk: with their tables they fit the second-level cache
SMALLEST_RANGE = 256  # weight rows; tables cost as much as about 100
CODE_CHUNKS_A_THREAD = 4
# A kernel that reads weights as they lie: name, parameters, arguments, and what it waits for.
Single = tuple[str, dict[str, int | str], dict[str, Any], set[str]]


def is_ternary(weight: Prepared) -> TypeGuard[StreamWeight | TritWeight]:
    """Whether a prepared weight is known to be ternary."""
    return isinstance(weight, TritWeight) or (isinstance(weight, StreamWeight) and weight.ternary)


def emit_lookup(
    binder: Binder,
    node: Node,
    weight: StreamWeight | TritWeight,
    rounded: Rounded,
    out: Buffer,
    common: dict[str, Any],
    counted_by: int,
) -> None:
    """Emits the three kernels; ``common`` are the arguments that all linear kernels share.

    They have ``least``, the rows of the smallest batch that is looked up.
    """
    entries, least = expansion_memory(binder), int(common["least"])
    panels, params = len(weight.codes), {"lanes": weight.lanes, "tokens": TOKENS}
    _emit_entries(binder, node, weight, entries, common["rows"], least)
    columns = _columns(binder, node, rounded, weight.padded_k, counted_by, least)
    rows = panels * weight.lanes // DWORD
    fewest = -(-rows * TOKENS // CELLS)
    ranges = _ranges(rows, fewest, binder.threads)
    assert rounded.scales is not None
    reads = {entries.key, columns.key, rounded.scales.key}
    binder.emit(
        "lookup_row",
        params | {"cells": CELLS},
        common
        | {
            "codes": entries,
            "tiles": _code_tiles(weight),
            "step": -(-panels // ranges),
            "columns": columns,
            "padded_k": weight.padded_k,
            "x_scale": rounded.scales,
            "coarse_step": -(-panels // fewest),
            "late_blocks": binder.threads,
        },
        # Twice as many as whole blocks need: the last block may be half full.
        chunks=(counted_by, 2 * ranges, TOKENS),
        reads=reads | ({out.key} if common["accumulate"] else set()),
        writes={out.key},
        label=f"{node.name}/lookup",
    )


def _emit_entries(
    binder: Binder,
    node: Node,
    weight: StreamWeight | TritWeight,
    entries: Buffer,
    rows: NDArray[np.int64],
    least: int,
) -> None:
    panels = len(weight.codes)
    step = max(1, panels // (binder.threads * CODE_CHUNKS_A_THREAD))
    name, params = "lookup_entries", {"lanes": weight.lanes, "tokens": TOKENS}
    arguments: dict[str, Argument] = {
        "entries": entries,
        "panels": panels,
        "tiles": weight.codes.shape[1],
        "step": step,
        "rows": rows,
        "least": least,
    }
    if isinstance(weight, TritWeight):
        name, isa = "trit_entries", {"isa": binder.isa.name}
        arguments |= {"trits": weight.codes, "code_tiles": weight.code_tiles}
    else:
        isa = {}
        arguments |= {"codes": weight.codes}
    binder.emit(
        name,
        params | isa,
        arguments,
        chunks=(ONE, panels, step),
        reads=set(),
        writes={entries.key},
        label=f"{node.name}/entries",
    )


def _code_tiles(weight: StreamWeight | TritWeight) -> int:
    """Vectors of a row of two-bit codes."""
    return weight.padded_k // TILE


def _ranges(rows: int, fewest: int, threads: int) -> int:
    """Ranges of weight rows of the last blocks: enough for all threads."""
    return max(fewest, min(threads, rows // SMALLEST_RANGE))


def expansion_memory(binder: Binder) -> Buffer:
    """Memory for the entries or the two-bit codes of any ternary layer.

    Two take turns, so that one fills while the other is read.
    """
    used = [key for key in binder.shared if key.startswith("entries")]
    if len(used) < 2:
        layers = (node for node in binder.graph.nodes if node.op == "linear")
        sizes = [
            len(weight.codes) * _code_tiles(weight) * weight.lanes
            for node in layers
            if is_ternary(weight := binder.prepared(node))
        ]
        array = aligned_zeros((1, max(sizes)), "uint8")
        binder.shared[f"entries{len(used)}"] = Buffer(f"entries{len(used)}", array, max(sizes))
        return binder.shared[f"entries{len(used)}"]
    oldest = binder.shared.pop(used[0])  # becomes the last
    binder.shared[used[0]] = oldest
    return oldest


def _columns(
    binder: Binder, node: Node, rounded: Rounded, padded_k: int, counted_by: int, least: int
) -> Buffer:
    """Transposes a rounded value, unless an earlier layer has done so for the same batches."""
    source = node.inputs[0]
    key = f"columns{padded_k} of {least} rows"
    if binder.columns.get(key) == source:
        return binder.shared[key]
    if key not in binder.shared:
        blocks = -(-binder.shape.rows // TOKENS)
        array = aligned_zeros((blocks, padded_k * TOKENS), "int16")
        binder.shared[key] = Buffer(key, array, padded_k * TOKENS)
    binder.columns[key] = source
    columns = binder.shared[key]
    binder.emit(
        "lookup_columns",
        {"tokens": TOKENS},
        {
            "rows": binder.count(counted_by),
            "x": rounded.codes,
            "x_stride": rounded.codes.stride,
            "columns": columns,
            "padded_k": padded_k,
            "least": least,
        },
        chunks=(counted_by, 1, TOKENS),
        reads={rounded.codes.key},
        writes={columns.key},
        label=f"{node.name}/columns",
    )
    return columns


def expand_codes(
    binder: Binder, node: Node, weight: TritWeight, single: Single, path: BlockPath
) -> Single:
    """Emits the expansion to the stream layout of two-bit codes.

    ``single`` is the kernel that reads trits: its name, parameters, arguments and inputs; returned
    is the one that would read the codes. A batch of which ``path`` takes no rows leaves the codes
    alone.
    """
    _, params, arguments, reads = single
    codes = expansion_memory(binder)
    step = max(1, arguments["panels"] // (binder.threads * CODE_CHUNKS_A_THREAD))
    binder.emit(
        "trit_codes",
        {
            "lanes": weight.lanes,
            "tokens": block_tokens(binder.isa, path.name),
            "isa": binder.isa.name,
        },
        {
            "trits": weight.codes,
            "codes": codes,
            "panels": len(weight.codes),
            "code_tiles": weight.code_tiles,
            "tiles": weight.codes.shape[1],
            "step": step,
            "rows": arguments["rows"],
            "least": path.least,
        },
        chunks=(ONE, arguments["panels"], step),
        reads=set(),
        writes={codes.key},
        label=f"{node.name}/codes",
    )
    expanded = {"codes": codes, "tiles": weight.code_tiles}
    return "linear_row", params | {"bits": 2}, arguments | expanded, reads | {codes.key}
