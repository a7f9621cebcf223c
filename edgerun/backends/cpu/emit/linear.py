"""Linear layers: rounding of the input, choice of the kernel, residual in place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from edgerun.backends.base import FEW_ROWS, Shape, Support
from edgerun.backends.cpu.binder import (
    ANY_LOGITS,
    LOGIT_ROWS,
    ONE,
    Binder,
    Rounded,
    Rounding,
)
from edgerun.backends.cpu.buffers import Buffer, BufferPool
from edgerun.backends.cpu.emit.blocks.gemm import (
    IN_BLOCKS,
    emit_gemm,
    in_blocks,
    layer_path,
)
from edgerun.backends.cpu.emit.blocks.lookup import emit_lookup, expand_codes
from edgerun.backends.cpu.emit.emitter import Emitter, Speeds
from edgerun.backends.cpu.families import (
    BY_BLOCK,
    LOOKUP,
    family_of,
    faster_family,
    weight_bytes,
)
from edgerun.backends.cpu.operands import Argument
from edgerun.backends.cpu.weights import DENSE_LANES, DenseWeight, Prepared
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import Matrix
from edgerun.graph.ir import Graph, Node
from edgerun.kernels.layouts.stream import DWORD, StreamWeight
from edgerun.kernels.layouts.trits import TritWeight
from edgerun.kernels.layouts.zero_kinds import MIDDLE
from edgerun.kernels.run.shares import count_chunks
from edgerun.machine.profile import outputs_kind, rounding_kind
from edgerun.machine.row_times import ALL_IN_TURNS

CHUNK_BYTES = 128 * 1024
LONGEST_CHUNK_BYTES = 1024 * 1024  # of large matrices: long streams are read faster
CHUNKS_A_THREAD, LONG_CHUNKS_A_THREAD = 4, 8
MIN_BLOCK, MAX_BLOCK = 16, 256  # sums of longer ones do not fit 16 bits (``products`` in dot.py)
STREAMS = 4  # panels that kernels read side by side
# What multiplies a gate and an up projection, by the kernel that would multiply each.
GATED: Mapping[str, str] = {"linear_row": "gated_row", "linear_block": "gated_block"}
DENSE_ROWS = 4  # of a panel of float32 weights
# For estimates: layers that read what was rounded once (three of attention, two of a gate, one of
# each output), and kernels of a layer that has many rows: for blocks of them, and for what is left.
READERS, BLOCK_STARTS = 1.5, 2


def rounding(binder: Binder, node: Node) -> Rounding | None:
    """The form in which a node reads its first input; None for the plain float value."""
    if node.attrs["activations"] == "float":
        return None
    return rounding_of(binder.prepared(node), node.attrs["activations"])


def rounding_of(weight: Prepared, activations: str) -> Rounding | None:
    """The form in which the kernel of a prepared weight reads its input."""
    if activations == "float":
        return None
    if isinstance(weight, DenseWeight):
        return Rounding("round_row", 0, weight.shape[1])
    if isinstance(weight, TritWeight):
        return Rounding("quantize_row", 0, weight.padded_k)
    if activations == "int8_block":
        return Rounding("quantize_block", weight.block, weight.padded_k)
    # Else a single vector has the scales and offsets of a block, or the scales of two.
    is_plain = weight.zeros == MIDDLE and not weight.halves
    if is_plain and weight.scales.shape[1] == 1:
        return Rounding("quantize_row", 0, weight.padded_k)
    return Rounding("quantize_row_blocks", weight.block, weight.padded_k)


def take_rounded(binder: Binder, value: str, form: Rounding, counted_by: int) -> Rounded:
    """Takes buffers for a value in a rounded form."""
    rounded = rounded_buffers(binder.pool, form)
    binder.rounded[value, form] = rounded
    binder.counted_by[value] = counted_by
    return rounded


def rounded_buffers(pool: BufferPool, form: Rounding) -> Rounded:
    """Takes buffers for something in a rounded form."""
    blocks = form.padded_k // form.block if form.block else 1
    if form.kernel == "round_row":
        return Rounded(pool.take(form.padded_k), None, None, blocks)
    return Rounded(
        codes=pool.take(form.padded_k, "int8"),
        scales=pool.take(blocks, "float32", exact=True),
        sums=pool.take(blocks, "float32" if form.block else "int32", exact=True),
        blocks=blocks,
    )


def rounding_arguments(form: Rounding, rounded: Rounded) -> dict[str, Argument]:
    """Output arguments of the kernel that rounds, alone or fused to a norm."""
    codes = rounded.codes
    if rounded.scales is None or rounded.sums is None:
        return {"out": codes, "out_stride": codes.stride}
    arguments: dict[str, Argument] = {
        "q": codes,
        "q_stride": codes.stride,
        "scale": rounded.scales,
        "sum": rounded.sums,
    }
    return arguments | ({"blocks": rounded.blocks} if form.block else {})


def emit_linear(binder: Binder, node: Node, index: int) -> None:
    """Emits rounding (unless it is there already) and the product.

    Gate and up projection may be left to the gate, for which their input then stays.
    """
    if _is_left_to_gate(binder, node):
        uses = binder.last_use
        uses[node.inputs[0]] = max(uses[node.inputs[0]], uses[node.outputs[0]])
        return
    source, _, bias_name, residual = (*node.inputs, "", "")[:4]
    weight = binder.prepared(node)
    form = rounding(binder, node)
    if form is not None:
        emit_rounding(binder, source, form, node)
    counted_by = binder.counted_by[source]
    # What is multiplied cannot be added to meanwhile.
    in_place = residual not in ("", source) and binder.dies_at(residual, index)
    output = node.outputs[0]
    if in_place:
        out = binder.rename(residual, output)
    else:
        out = binder.new(output, weight.shape[0], counted_by)
    common: dict[str, Any] = {
        "rows": binder.count(counted_by),
        "bias": binder.vector(bias_name) if bias_name else None,
        "out": out,
        "n": weight.shape[0],
        "panels": panels_of(weight),
        "tiles": tiles_of(weight),
        "out_stride": out.stride,
        "accumulate": int(in_place),
    }
    if not isinstance(weight, DenseWeight):
        common["scales"] = weight.scales
    _emit_product(binder, node, form, weight, common, out)
    if residual and not in_place:
        _emit_residual(binder, node, out, counted_by)


def _emit_product(
    binder: Binder,
    node: Node,
    form: Rounding | None,
    weight: Prepared,
    common: dict[str, Any],
    out: Buffer,
) -> None:
    """Emits the product; ``common`` are the arguments that all linear kernels share."""
    source, counted_by = node.inputs[0], binder.counted_by[node.inputs[0]]
    rounded = binder.rounded[source, form] if form is not None else None
    name, params, extra, reads = kernel_of(binder, weight, rounded or binder.values[source], form)
    codes = weight.values if isinstance(weight, DenseWeight) else weight.codes
    shared, chunks = shares(common["panels"], codes.nbytes, binder.threads)
    count = ANY_LOGITS if counted_by == LOGIT_ROWS else ONE
    path = layer_path(binder, weight, form)
    # Of the logits one row is wanted, as a rule: not worth compiling a kernel for many. Other
    # layers have that kernel anyway.
    is_head = counted_by == LOGIT_ROWS and node.outputs[0] in binder.graph.outputs
    if is_head and path.name != LOOKUP:
        path = ALL_IN_TURNS
    if name in IN_BLOCKS or name == "linear_trits":
        extra |= in_blocks(binder.isa, path)
    binder.emit(
        name,
        params,
        common | {"codes": codes} | shared | extra,
        chunks=(count, chunks, 1),
        reads=reads | ({out.key} if common["accumulate"] else set()),
        writes={out.key},
        label=node.name,
    )
    if path.name == LOOKUP:
        assert rounded is not None
        assert not isinstance(weight, DenseWeight)
        emit_lookup(binder, node, weight, rounded, out, common | {"least": path.least}, counted_by)
    elif path.name:
        single = name, params, common | {"codes": codes} | extra, reads
        if isinstance(weight, TritWeight):
            single = expand_codes(binder, node, weight, single, path)
        step = panels_a_chunk(common["panels"], codes.nbytes, binder.threads)
        emit_gemm(binder, node, single, out, step, path)


def _is_left_to_gate(binder: Binder, node: Node) -> bool:
    """Whether what reads a projection is a gate that multiplies all its inputs by one kernel."""
    readers = binder.readers.get(node.outputs[0], [])
    if len(readers) != 1 or readers[0].op != "gate":
        return False
    pair = [binder.producers.get(name) for name in readers[0].inputs]
    layouts = {_gated_layout(binder, each) for each in pair}
    return len(layouts) == 1 and None not in layouts


def _gated_layout(binder: Binder, node: Node | None) -> tuple[Any, ...] | None:
    """What projections of a gate must agree in; None for what no kernel multiplies side by side."""
    if node is None or node.op != "linear" or any(node.inputs[3:]):
        return None
    form, weight, output = rounding(binder, node), binder.prepared(node), node.outputs[0]
    if form is None or not isinstance(weight, StreamWeight):
        return None
    path = layer_path(binder, weight, form)
    if path.name == LOOKUP:
        return None
    if len(binder.readers[output]) != 1 or output in binder.graph.outputs:
        return None
    size = weight.bits, weight.lanes, weight.block, weight.zeros, weight.halves
    return node.inputs[0], form, weight.shape, path, *size


def tiles_of(weight: Prepared) -> int:
    """Vectors of a row."""
    if isinstance(weight, DenseWeight):
        return int(weight.values.shape[1]) // DENSE_LANES
    return int(weight.codes.shape[1])


def panels_of(weight: Prepared) -> int:
    """Groups of rows that kernels take at a time."""
    rows = DENSE_ROWS if isinstance(weight, DenseWeight) else weight.lanes // DWORD
    return -(-weight.shape[0] // rows)


def panels_a_chunk(panels: int, nbytes: int, threads: int, matrices: int = 1) -> int:
    """Small enough to share the work, large enough to be worth taking.

    Args:
        panels: of a matrix.
        nbytes: of its codes.
        threads: that share the work.
        matrices: of that size that are multiplied at a time; a chunk is of one of them.
    """
    longest = min(matrices * nbytes // (threads * LONG_CHUNKS_A_THREAD), LONGEST_CHUNK_BYTES)
    by_size = max(CHUNK_BYTES, longest) * panels // max(1, nbytes)
    by_share = matrices * panels // (threads * CHUNKS_A_THREAD)
    step = max(1, min(by_size, by_share, panels))
    return max(step // STREAMS, 1) * STREAMS if panels > STREAMS else panels


def shares(panels: int, nbytes: int, threads: int) -> tuple[dict[str, int], int]:
    """How threads share the panels of a matrix that is read once: arguments, and chunks.

    ``nbytes`` are those of its codes.
    """
    if threads == 1:  # nobody is waited for, so all of it is one run
        return {"step": panels, "threads": 0}, 1
    by_size = CHUNK_BYTES * panels // max(1, nbytes)
    by_share = panels // (threads * CHUNKS_A_THREAD)
    step = max(min(by_size, by_share) // STREAMS, 1) * STREAMS
    return {"step": step, "threads": threads}, count_chunks(panels, step, threads)


def kernel_of(
    binder: Binder, weight: Prepared, source: Buffer | Rounded, form: Rounding | None
) -> tuple[str, dict[str, int | str], dict[str, Any], set[str]]:
    """Name, compile-time constants, input arguments and input buffers of the product."""
    rounded = source if isinstance(source, Rounded) else None
    x = source.codes if isinstance(source, Rounded) else source
    arguments: dict[str, Any] = {"x": x, "x_stride": x.stride}
    if isinstance(weight, DenseWeight):
        return "linear_dense", {"width": DENSE_LANES}, arguments, {x.key}
    if isinstance(weight, TritWeight):
        assert rounded is not None
        assert rounded.scales is not None
        assert rounded.sums is not None
        arguments |= {"x_scale": rounded.scales, "x_sum": rounded.sums}
        constants: dict[str, int | str] = {"lanes": weight.lanes, "isa": binder.isa.name}
        return "linear_trits", constants, arguments, rounded.keys()
    params: dict[str, int | str] = {"bits": weight.bits, "lanes": weight.lanes}
    in_blocks = {"block": weight.block, "zeros": int(weight.zeros)}
    halves = {"halves": int(weight.halves)}
    if rounded is None or rounded.scales is None or rounded.sums is None:
        arguments["blocks"] = weight.blocks
        return "linear_float", params | in_blocks, arguments, {x.key}
    arguments |= {"x_scale": rounded.scales, "x_sum": rounded.sums}
    params["isa"] = binder.isa.name
    if form is not None and form.kernel == "quantize_row":
        return "linear_row", params, arguments, rounded.keys()
    arguments["blocks"] = rounded.blocks
    return "linear_block", params | in_blocks | halves, arguments, rounded.keys()


def round_rows(
    binder: Binder,
    node: Node,
    x: Buffer,
    form: Rounding,
    rounded: Rounded,
    chunks: tuple[int, int, int],
    rows: int = 0,
) -> None:
    """Emits the rounding of a buffer's rows, of which the first of ``chunks`` names the count."""
    arguments: dict[str, Argument] = {
        "rows": binder.count(chunks[0]),
        "x": x,
        "x_stride": x.stride,
        "width": x.width,
    }
    lanes = binder.isa.float_lanes
    binder.emit(
        form.kernel,
        {"block": form.block, "lanes": lanes} if form.block else {"lanes": lanes},
        arguments | rounding_arguments(form, rounded),
        chunks=chunks,
        reads={x.key},
        writes=rounded.keys(),
        label=f"{node.name}/rounding",
        rows=rows,
    )


def emit_rounding(binder: Binder, source: str, form: Rounding, node: Node) -> Rounded:
    """Emits the rounding of a value, unless it is there already."""
    if (source, form) in binder.rounded:
        return binder.rounded[source, form]
    x, counted_by = binder.values[source], binder.counted_by[source]
    rounded = take_rounded(binder, source, form, counted_by)
    round_rows(binder, node, x, form, rounded, (counted_by, 1, 1))
    return rounded


def _emit_residual(binder: Binder, node: Node, out: Buffer, counted_by: int) -> None:
    residual = binder.values[node.inputs[3]]
    binder.emit(
        "add",
        {"lanes": binder.isa.float_lanes},
        {
            "rows": binder.count(counted_by),
            "left": out,
            "right": residual,
            "out": out,
            "width": out.stride,
        },
        chunks=(counted_by, 1, 1),
        reads={out.key, residual.key},
        writes={out.key},
        label=f"{node.name}/residual",
    )


def _supports(graph: Graph, node: Node) -> Support:
    return can_multiply(graph.matrix(node.inputs[1]))


def can_multiply(weight: Matrix) -> Support:
    """Whether there is a kernel for a weight."""
    if not isinstance(weight, PackedWeight):
        return Support(True)
    if not MIN_BLOCK <= weight.block <= MAX_BLOCK or weight.block & (weight.block - 1):
        return Support(False, f"blocks of {weight.block} weights")
    return Support(True)


def _cost(graph: Graph, node: Node, shape: Shape, speeds: Speeds) -> float:
    """The times to stream weights, to multiply, to write sums, to round, and to start kernels.

    One row is multiplied while weights stream, if they do: small models stay in the cache from
    token to token, though not from prompt to prompt. With more rows each part of the weights is
    read, then used for all. Bytes and speed are those of the weights as they will lie in memory,
    which for prompts may be others. A rounded input is read by about ``READERS`` layers, which
    share its cost.
    """
    weight, activations = graph.matrix(node.inputs[1]), str(node.attrs["activations"])
    rows = shape.rows
    nbytes = weight_bytes(weight, activations, trits=speeds.trits)
    kernels = family_of(weight, activations, trits=speeds.trits)
    if node.inputs[1] in speeds.regrouped:
        nbytes, kernels = speeds.regrouped[node.inputs[1]], faster_family(kernels, speeds.profile)
    multiplied = speeds.work_seconds(math.prod(weight.shape) * rows, kernels, rows)
    if rows == 1:
        seconds = max(speeds.stream_seconds(nbytes), multiplied)
    else:
        written = speeds.element_seconds(weight.shape[0] * rows, outputs_kind(kernels), rows)
        seconds = speeds.read_seconds(nbytes) + multiplied + written
    seconds += speeds.start_seconds(1 if rows <= FEW_ROWS else BLOCK_STARTS)
    if activations == "float":
        return seconds
    # Rows that are rounded whole for weights with scales of blocks have their sums by block, too.
    kind = rounding_kind(BY_BLOCK if kernels.startswith(f"{BY_BLOCK}/") else activations)
    rounded = speeds.element_seconds(weight.shape[1] * rows, kind, rows)
    return seconds + (speeds.start_seconds() + rounded) / READERS


EMITTER = Emitter(emit_linear, _supports, _cost, rounding)
