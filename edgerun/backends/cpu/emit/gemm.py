"""Low-bit linear layers of many rows by unpacking once (``kernels/linear/gemm.py, amx.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgerun.backends.base import FEW_ROWS, Phase
from edgerun.backends.cpu.binder import ANY_LOGITS, LOGIT_ROWS, ONE, Binder, Rounded, Rounding
from edgerun.backends.cpu.buffers import Buffer
from edgerun.backends.cpu.families import AMX
from edgerun.graph.ir import Node
from edgerun.kernels.lang.isa import Isa
from edgerun.kernels.layouts.tile_order import TOKENS, strip_panels

# What the kernel that does blocks of rows is called, behind ``Isa.prompts``, by the one that does
# single rows.
IN_BLOCKS: Mapping[str, str] = {
    "linear_row": "row",
    "linear_block": "block",
    "gated_row": "gated_row",
    "gated_block": "gated_block",
}
# From how many rows a batch goes to AMX: those of a tile register, which costs the same however few
# of them there are, and which 16 rows fill without its being configured anew. Measured on two cores
# of a Xeon with AMX (November 2026), milliseconds of 4, 8 and 12 rows by the linear kernels, as
# they were, and of 16 by AMX, weights 6912 x 2560: ternary 0.30, 0.60, 0.87 and 0.64; int4 with
# scales of rows 0.34, 0.62, 0.89 and 0.87; int8 0.52, 0.83, 1.16 and 1.43; int4 in blocks, whose
# linear kernel has become three times as fast since, 1.6, 2.1, 3.8 and 2.3. Only ternary weights
# would gain before, from 11 rows on.
AMX_ROWS = FEW_ROWS


def by_gemm(binder: Binder, *, trits: bool = False) -> bool:
    """Whether a program is for batches of so many rows that unpacking weights once pays.

    Up to ``FEW_ROWS`` rows the linear kernels, which multiply while they unpack, are as fast or
    faster with every instruction set and format (``tools/bench/rows.py``; docs/benchmarks.md), with
    some they are for any number; but not for trits, which take more time to unpack than others.
    The matrix unit needs memory that there may not be.
    """
    if binder.isa.prompts == AMX and binder.areas is None:
        return False
    return binder.shape.phase is Phase.PREFILL and (trits or binder.isa.unpacks)


def gemm_tokens(isa: Isa) -> int:
    """Rows of a block: a tile of two vectors of weight rows fills half of the registers.

    Blocks of AMX have any size from ``AMX_ROWS`` on; ``lookup_rows`` takes a negative number so.
    """
    if isa.prompts == AMX:
        return -AMX_ROWS
    return isa.registers // (4 * isa.partial)


def emit_gemm(
    binder: Binder,
    node: Node,
    single: tuple[str, dict[str, int | str], dict[str, Any], set[str]],
    out: Buffer,
    step: int,
) -> None:
    """Emits the product of the rows that fill blocks.

    ``single`` is the kernel that does the other rows: its name, parameters, arguments and inputs.
    """
    name, params, arguments, reads = single
    arguments = {key: value for key, value in arguments.items() if key != "lookup"}
    params = params | {"tokens": gemm_tokens(binder.isa)}
    counted_by = binder.counted_by[node.inputs[0]]
    if binder.isa.prompts == AMX:
        arguments, packed = in_tile_order(binder, node, arguments, params)
        arguments |= strip_arguments(binder, arguments, params)
        params, reads = params | {"packed": 1}, reads | packed
    binder.emit(
        f"{binder.isa.prompts}_{IN_BLOCKS[name]}",
        params,
        arguments | {"step": step},
        chunks=(ANY_LOGITS if counted_by == LOGIT_ROWS else ONE, arguments["panels"], step),
        reads=reads | ({out.key} if arguments["accumulate"] else set()),
        writes={out.key},
        label=f"{node.name}/product",
    )


def strip_arguments(
    binder: Binder, arguments: dict[str, Any], params: dict[str, int | str]
) -> dict[str, Any]:
    """Where threads unpack weights, and how many panels at a time."""
    assert binder.areas is not None
    memory, matrices = binder.areas.memory, 1 + ("up_codes" in arguments)
    return {
        "areas": memory,
        "area_bytes": memory.shape[1],
        "taken": binder.areas.taken,
        "slots": len(memory),
        "strip": strip_panels(_padded_k(arguments, params)) // matrices,
    }


def in_tile_order(
    binder: Binder, node: Node, arguments: dict[str, Any], params: dict[str, int | str]
) -> tuple[dict[str, Any], set[str]]:
    """Arguments with activations in tile order, and their buffers.

    They are packed unless an earlier layer has done so.
    """
    source, k, block = node.inputs[0], _padded_k(arguments, params), int(params.get("block", 0))
    form = Rounding(f"tiles of {arguments['x'].key}", block, k)
    if (source, form) not in binder.rounded:
        binder.rounded[source, form] = _emit_packing(binder, node, arguments, form)
    packed = binder.rounded[source, form]
    changed: dict[str, Any] = {"x": packed.codes, "x_stride": k}
    if block:
        changed |= {"x_scale": packed.scales, "x_sum": packed.sums}
    return arguments | changed, packed.keys()


def _emit_packing(binder: Binder, node: Node, arguments: dict[str, Any], form: Rounding) -> Rounded:
    """Emits the kernel that packs; rows of a batch are filled up to whole tiles."""
    k, block, counted_by = form.padded_k, form.block, binder.counted_by[node.inputs[0]]
    blocks = k // block if block else 1
    packed = Rounded(
        codes=_whole_tiles(binder, k, "int8"),
        scales=_whole_tiles(binder, blocks, "float32") if block else None,
        sums=_whole_tiles(binder, blocks, "int32") if block else None,
        blocks=blocks,
    )
    names = ("rows", "x", "x_stride", *(("x_scale", "x_sum", "blocks") if block else ()))
    operands = {name: arguments[name] for name in names} | {"k": k, "packed": packed.codes}
    if block:
        operands |= {"scale": packed.scales, "sum": packed.sums}
    read = (arguments[name] for name in ("x", "x_scale", "x_sum") if name in operands)
    binder.emit(
        "pack_block" if block else "pack_row",
        {"least": AMX_ROWS} | ({"block": block} if block else {}),
        operands,
        chunks=(counted_by, 1, TOKENS),
        reads={buffer.key for buffer in read},
        writes=packed.keys(),
        label=f"{node.name}/packing",
    )
    return packed


def _whole_tiles(binder: Binder, width: int, dtype: str) -> Buffer:
    """A buffer that has room for so many elements a row of whole pairs of tiles."""
    rows = binder.shape.rows
    return binder.pool.take(-(-rows // TOKENS) * TOKENS * width // rows + 1, dtype, exact=True)


def _padded_k(arguments: dict[str, Any], params: dict[str, int | str]) -> int:
    return int(arguments["tiles"]) * 32 // int(params["bits"])
