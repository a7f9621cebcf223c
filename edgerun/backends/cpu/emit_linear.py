"""Linear layers: rounding of the input, choice of the kernel, residual in place."""

from __future__ import annotations

from edgerun.backends.cpu.binder import (
    ANY_LOGITS,
    LOGIT_ROWS,
    ONE,
    Binder,
    Quantised,
    Rounding,
)
from edgerun.backends.cpu.buffers import ROW_MULTIPLE, Buffer
from edgerun.backends.cpu.weights import DENSE_LANES, DenseWeight, Prepared
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Node
from edgerun.kernels.isa import VECTOR_BYTES
from edgerun.kernels.layout import GROUP, StreamWeight

CHUNK_BYTES = 128 * 1024
CHUNKS_A_THREAD = 4


def rounding(binder: Binder, node: Node) -> Rounding | None:
    """The form in which a node reads its first input; None for the plain float value."""
    if node.op != "linear":
        return None
    weight = _prepared(binder, node)
    activations = node.attrs["activations"]
    if isinstance(weight, DenseWeight) or activations == "float":
        return None
    block = weight.block if activations == "int8_block" else 0
    return Rounding(activations, block, weight.padded_k)


def take_quantised(
    binder: Binder, value: str, form: Rounding, counted_by: int
) -> Quantised:
    """Takes buffers for a value in an int8 form."""
    blocks = form.padded_k // form.block if form.block else 1
    quantised = Quantised(
        codes=binder.pool.take(form.padded_k, "int8"),
        scales=binder.pool.take(blocks, "float32", exact=True),
        sums=binder.pool.take(blocks, "float32" if form.block else "int32", exact=True),
        blocks=blocks,
    )
    binder.quantised[value, form] = quantised
    binder.counted_by[value] = counted_by
    return quantised


def emit_linear(binder: Binder, node: Node, index: int) -> None:
    """Emits rounding (unless it is there already) and the product."""
    source, _, bias_name, residual = (*node.inputs, "", "")[:4]
    weight = _prepared(binder, node)
    form = rounding(binder, node)
    if form is not None and (source, form) not in binder.quantised:
        _emit_quantise(binder, source, form, node)
    counted_by = binder.counted_by[source]
    in_place = bool(residual) and binder.dies_at(residual, index)
    output = node.outputs[0]
    if in_place:
        out = binder.rename(residual, output)
    else:
        out = binder.new(output, weight.shape[0], counted_by)
    name, params, extra, reads = _kernel(binder, source, form, weight)
    codes = weight.values if isinstance(weight, DenseWeight) else weight.codes
    groups = -(-weight.shape[0] // GROUP)
    step = _step(groups, codes.nbytes, binder.options.threads)
    fields = {
        "rows": binder.rows_address(counted_by),
        "codes": codes.ctypes.data,
        "scales": 0 if isinstance(weight, DenseWeight) else weight.scales.ctypes.data,
        "bias": binder.graph.array(bias_name).ctypes.data if bias_name else 0,
        "out": out.address,
        "n": weight.shape[0],
        "groups": groups,
        "step": step,
        "tiles": _tiles(weight),
        "out_stride": out.stride,
        "accumulate": int(in_place),
    } | extra
    binder.emit(
        name,
        params,
        fields,
        chunks=(ANY_LOGITS if counted_by == LOGIT_ROWS else ONE, groups, step),
        reads=reads | ({out.key} if in_place else set()),
        writes={out.key},
        label=node.name,
    )
    if residual and not in_place:
        _emit_residual(binder, node, out, counted_by)


def _prepared(binder: Binder, node: Node) -> Prepared:
    constant = binder.graph.constants[node.inputs[1]]
    return binder.weights.prepare(constant, node.attrs["activations"])


def _tiles(weight: Prepared) -> int:
    if isinstance(weight, DenseWeight):
        return weight.values.shape[1] // DENSE_LANES
    return weight.codes.shape[1]


def _step(groups: int, nbytes: int, threads: int) -> int:
    """Groups a chunk: small enough to share the work, large enough to be worth taking."""
    by_size = CHUNK_BYTES * groups // max(1, nbytes)
    by_share = groups // (threads * CHUNKS_A_THREAD)
    return max(1, min(by_size, by_share))


def _kernel(
    binder: Binder, source: str, form: Rounding | None, weight: Prepared
) -> tuple[str, dict[str, int | str], dict[str, int], set[str]]:
    """Name, compile-time constants, input fields and input buffers of the product."""
    if form is None:
        x = binder.values[source]
        fields = {"x": x.address, "x_stride": x.stride}
        if isinstance(weight, DenseWeight):
            return "linear_dense", {"width": DENSE_LANES}, fields, {x.key}
        fields["blocks"] = weight.scales.shape[1]
        params = {"bits": weight.bits, "lanes": weight.lanes, "block": weight.block}
        return "linear_float", dict(params), fields, {x.key}
    assert isinstance(weight, StreamWeight)
    quantised = binder.quantised[source, form]
    fields = {
        "x": quantised.codes.address,
        "x_stride": quantised.codes.stride,
        "x_scale": quantised.scales.address,
        "x_sum": quantised.sums.address,
    }
    common: dict[str, int | str] = {"bits": weight.bits, "lanes": weight.lanes, "isa": binder.isa}
    if form.activations == "int8_row":
        return "linear_row", common, fields, quantised.reads()
    fields["blocks"] = quantised.blocks
    return "linear_block", common | {"block": weight.block}, fields, quantised.reads()


def _emit_quantise(binder: Binder, source: str, form: Rounding, node: Node) -> None:
    x, counted_by = binder.values[source], binder.counted_by[source]
    quantised = take_quantised(binder, source, form, counted_by)
    block = form.activations == "int8_block"
    lanes = VECTOR_BYTES[binder.isa] // 4
    fields = {
        "rows": binder.rows_address(counted_by),
        "x": x.address,
        "x_stride": x.stride,
        "width": x.width,
        "q": quantised.codes.address,
        "q_stride": quantised.codes.stride,
        "scale": quantised.scales.address,
        "sum": quantised.sums.address,
    }
    if block:
        fields["blocks"] = quantised.blocks
    binder.emit(
        "quantize_block" if block else "quantize_row",
        {"block": form.block, "lanes": lanes} if block else {"lanes": lanes},
        fields,
        chunks=(counted_by, 1, 1),
        reads={x.key},
        writes=quantised.reads(),
        label=f"{node.name}/quantise",
    )


def _emit_residual(binder: Binder, node: Node, out: Buffer, counted_by: int) -> None:
    residual = binder.values[node.inputs[3]]
    binder.emit(
        "add",
        {"lanes": VECTOR_BYTES[binder.isa] // 4},
        {
            "rows": binder.rows_address(counted_by),
            "a": out.address,
            "b": residual.address,
            "out": out.address,
            "width": out.stride,
        },
        chunks=(counted_by, 1, 1),
        reads={out.key, residual.key},
        writes={out.key},
        label=f"{node.name}/residual",
    )


__all__ = ["ROW_MULTIPLE", "emit_linear", "rounding", "take_quantised"]
