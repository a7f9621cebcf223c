"""Low-bit linear layers of many rows by unpacking once (``kernels/linear/gemm.py, amx.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from edgerun.backends.base import Phase
from edgerun.backends.cpu.binder import ANY_LOGITS, LOGIT_ROWS, ONE, Binder, Rounded, Rounding
from edgerun.backends.cpu.buffers import Buffer
from edgerun.backends.cpu.families import AMX
from edgerun.backends.cpu.row_paths import block_tokens, path_in, prepared_family
from edgerun.backends.cpu.weights import Prepared
from edgerun.graph.ir import Node
from edgerun.kernels.lang.isa import Isa
from edgerun.kernels.layouts.tile_order import register_order, strip_panels
from edgerun.machine.row_times import BlockPath

# What the kernel that does blocks of rows is called, behind the path, by the one that does single
# rows.
IN_BLOCKS: Mapping[str, str] = {
    "linear_row": "row",
    "linear_block": "block",
    "gated_row": "gated_row",
    "gated_block": "gated_block",
}
# From how many rows on experts' rows go to AMX: those of a tile register, which costs the same
# however few of them there are.
EXPERT_AMX_ROWS = 16


def unpacks_experts(binder: Binder) -> bool:
    """Whether a program is for batches of so many rows that unpacking experts once pays.

    The matrix unit needs memory that there may not be.
    """
    if binder.isa.prompts == AMX and binder.areas is None:
        return False
    return binder.shape.phase is Phase.PREFILL and binder.isa.unpacks > 0


def layer_path(binder: Binder, weight: Prepared, form: Rounding | None) -> BlockPath:
    """What multiplies blocks of rows of a linear layer in this program.

    Args:
        binder: of the program.
        weight: of the layer.
        form: in which the layer reads its input.
    """
    kernels = prepared_family(weight, "" if form is None else form.kernel)
    has_areas = binder.areas is not None
    return path_in(binder.shape, binder.isa, binder.row_paths, kernels, has_areas=has_areas)


def in_blocks(isa: Isa, path: BlockPath) -> dict[str, int]:
    """The arguments that say which rows of a batch take turns and which do not."""
    return {"tokens": block_tokens(isa, path.name), "least": path.least}


def emit_gemm(
    binder: Binder,
    node: Node,
    single: tuple[str, dict[str, int | str], dict[str, Any], set[str]],
    out: Buffer,
    step: int,
    path: BlockPath,
) -> None:
    """Emits the product of the rows that fill blocks, by ``gemm`` or the matrix unit.

    ``single`` is the kernel that does the other rows: its name, parameters, arguments and inputs.
    """
    name, params, arguments, reads = single
    arguments = {key: value for key, value in arguments.items() if key != "tokens"}
    params = params | {"tokens": block_tokens(binder.isa, path.name)}
    counted_by = binder.counted_by[node.inputs[0]]
    if packing := _packing(binder.isa, path, params):
        arguments, packed = in_tile_order(binder, node, arguments, params, packing)
        params, reads = params | {"packed": 1}, reads | packed
    if path.name == AMX:
        arguments |= strip_arguments(binder, arguments, params)
    binder.emit(
        f"{path.name}_{IN_BLOCKS[name]}",
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
    memory, matrices = binder.areas.memory, params.get("matrices", 1)
    return {
        "areas": memory,
        "area_bytes": memory.shape[1],
        "taken": binder.areas.taken,
        "slots": len(memory),
        "strip": strip_panels(_padded_k(arguments, params)) // int(matrices),
    }


@dataclass(frozen=True)
class Packing:
    """The kernel that brings activations into tile order.

    Attributes:
        kernel: its name.
        constants: of the kernel, when it is compiled.
        tokens: batch rows of a chunk.
    """

    kernel: str
    constants: Mapping[str, int | str]
    tokens: int


def _packing(isa: Isa, path: BlockPath, params: Mapping[str, int | str]) -> Packing | None:
    """What packs the input of a product that has some constants; None for what reads rows."""
    block = int(params.get("block", 0))
    if path.name == AMX:
        order = register_order(block)
        return Packing("pack_block" if block else "pack_row", order.constants, order.tokens)
    if not block:
        return None
    names = ("bits", "tokens", "isa", "zeros")
    return Packing("order_block", {name: params[name] for name in names}, isa.tile[1])


def in_tile_order(
    binder: Binder,
    node: Node,
    arguments: dict[str, Any],
    params: dict[str, int | str],
    packing: Packing,
) -> tuple[dict[str, Any], set[str]]:
    """Arguments with activations in tile order, and their buffers.

    They are packed unless an earlier layer has done so.
    """
    source, k, block = node.inputs[0], _padded_k(arguments, params), int(params.get("block", 0))
    # Batches that are too small for a layer leave its rows as they are.
    how = " ".join(map(str, (packing.kernel, *packing.constants.values())))
    form = Rounding(f"{how} of {arguments['x'].key}, {arguments['least']} rows", block, k)
    if (source, form) not in binder.rounded:
        binder.rounded[source, form] = _emit_packing(binder, node, arguments, form, packing)
    packed = binder.rounded[source, form]
    changed: dict[str, Any] = {"x": packed.codes, "x_stride": k}
    if block:
        changed |= {"x_scale": packed.scales, "x_sum": packed.sums}
    return arguments | changed, packed.keys()


def _emit_packing(
    binder: Binder, node: Node, arguments: dict[str, Any], form: Rounding, packing: Packing
) -> Rounded:
    """Emits the kernel that packs; rows of a batch are filled up to whole tiles."""
    k, block, counted_by = form.padded_k, form.block, binder.counted_by[node.inputs[0]]
    blocks, whole_tiles = k // block if block else 1, partial(_whole_tiles, binder, packing.tokens)
    packed = Rounded(
        codes=whole_tiles(k, "int8"),
        scales=whole_tiles(blocks, "float32") if block else None,
        sums=whole_tiles(blocks, "int32") if block else None,
        blocks=blocks,
    )
    names = ("rows", "least", "x", "x_stride", *(("x_scale", "x_sum", "blocks") if block else ()))
    operands = {name: arguments[name] for name in names} | {"k": k, "packed": packed.codes}
    if block:
        operands |= {"scale": packed.scales, "sum": packed.sums}
    read = (arguments[name] for name in ("x", "x_scale", "x_sum") if name in operands)
    binder.emit(
        packing.kernel,
        dict(packing.constants),
        operands,
        chunks=(counted_by, 1, packing.tokens),
        reads={buffer.key for buffer in read},
        writes=packed.keys(),
        label=f"{node.name}/packing",
    )
    return packed


def _whole_tiles(binder: Binder, tokens: int, width: int, dtype: str) -> Buffer:
    """A buffer that has room for so many elements a row of whole chunks of ``tokens`` rows."""
    rows = binder.shape.rows
    return binder.pool.take(-(-rows // tokens) * tokens * width // rows + 1, dtype, exact=True)


def _padded_k(arguments: dict[str, Any], params: dict[str, int | str]) -> int:
    return int(arguments["tiles"]) * 32 // int(params["bits"])
