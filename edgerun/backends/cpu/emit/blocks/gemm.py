"""Low-bit linear layers of many rows by unpacking once (``kernels/linear/gemm.py, amx.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgerun.backends.cpu.binder import ANY_LOGITS, LOGIT_ROWS, ONE, Binder, Rounded, Rounding
from edgerun.backends.cpu.buffers import Buffer, BufferPool
from edgerun.backends.cpu.families import AMX
from edgerun.backends.cpu.row_paths import block_tokens, path_in, prepared_family
from edgerun.backends.cpu.weights import Prepared
from edgerun.errors import BackendError
from edgerun.graph.ir import Node
from edgerun.kernels.lang.isa import Isa
from edgerun.kernels.layouts.tile_order import area_bytes, register_order, strip_panels
from edgerun.machine.row_times import BlockPath

# What the kernel that does blocks of rows is called, behind the path, by the one that does single
# rows.
IN_BLOCKS: Mapping[str, str] = {
    "linear_row": "row",
    "linear_block": "block",
    "gated_row": "gated_row",
    "gated_block": "gated_block",
}


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
    if packing := packing_of(binder.isa, path, params):
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
    """Where threads unpack weights, and how many panels at a time.

    Raises:
        BackendError: there is less memory than they take.
    """
    assert binder.areas is not None
    memory, matrices = binder.areas.memory, params.get("matrices", 1)
    k, block = padded_k(arguments, params), int(params.get("block", 0))
    taken = area_bytes(k, k // block if block else 1, packed=bool(params["packed"]))
    if taken > memory.shape[1]:
        raise BackendError(
            f"a thread would unpack {taken} bytes of weights into {memory.shape[1]}: the program "
            "was not built; please report this model"
        )
    return {
        "areas": memory,
        "area_bytes": memory.shape[1],
        "taken": binder.areas.taken,
        "slots": len(memory),
        "strip": strip_panels(k) // int(matrices),
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


def packing_of(isa: Isa, path: BlockPath, params: Mapping[str, int | str]) -> Packing | None:
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
    source, k, block = node.inputs[0], padded_k(arguments, params), int(params.get("block", 0))
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
    counted_by = binder.counted_by[node.inputs[0]]
    whole = -(-binder.shape.rows // packing.tokens) * packing.tokens
    packed = packed_rows(binder.pool, whole, form.padded_k, form.block)
    operands, reads = packing_arguments(arguments, form.padded_k, packed)
    binder.emit(
        packing.kernel,
        dict(packing.constants),
        operands,
        chunks=(counted_by, 1, packing.tokens),
        reads=reads,
        writes=packed.keys(),
        label=f"{node.name}/packing",
    )
    return packed


def packed_rows(pool: BufferPool, rows: int, k: int, block: int) -> Rounded:
    """Buffers for so many rows in the order of tiles; without blocks there are codes alone."""
    blocks = k // block if block else 1
    return Rounded(
        codes=pool.take_rows(rows, k, "int8"),
        scales=pool.take_rows(rows, blocks, "float32") if block else None,
        sums=pool.take_rows(rows, blocks, "int32") if block else None,
        blocks=blocks,
    )


def packing_arguments(
    arguments: Mapping[str, Any], k: int, packed: Rounded
) -> tuple[dict[str, Any], set[str]]:
    """Arguments of a kernel that packs what a product with some arguments reads, and its buffers.

    Args:
        arguments: of the product; ``least`` and those of its input are looked at.
        k: elements of a row.
        packed: what it becomes.
    """
    sources = ("x",) if packed.scales is None else ("x", "x_scale", "x_sum")
    names = ("rows", "least", "x_stride", *sources, *(() if packed.scales is None else ("blocks",)))
    operands = {name: arguments[name] for name in names} | {"k": k, "packed": packed.codes}
    if packed.scales is not None:
        operands |= {"scale": packed.scales, "sum": packed.sums}
    return operands, {arguments[name].key for name in sources}


def padded_k(arguments: Mapping[str, Any], params: Mapping[str, Any]) -> int:
    """Elements of a row of a product's input."""
    return int(arguments["tiles"]) * 32 // int(params["bits"])
