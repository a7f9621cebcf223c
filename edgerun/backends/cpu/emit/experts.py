"""Layers of experts: rows sorted by expert, and each expert's weights read once a batch.

A batch is spread over places (``places.py``); products are dispatched, each expert's rows to its
weights (``dispatch.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.base import Shape, Support
from edgerun.backends.cpu.binder import Binder, Rounded, Rounding
from edgerun.backends.cpu.buffers import Buffer
from edgerun.backends.cpu.dispatch import emit_dispatch
from edgerun.backends.cpu.emit.emitter import Emitter, Speeds
from edgerun.backends.cpu.emit.gemm import IN_BLOCKS, by_gemm, gemm_tokens
from edgerun.backends.cpu.emit.linear import (
    GATED,
    can_multiply,
    emit_rounding,
    kernel_of,
    panels_a_chunk,
    panels_of,
    round_rows,
    rounded_buffers,
    rounding_of,
    tiles_of,
)
from edgerun.backends.cpu.families import family_of, weight_bytes
from edgerun.backends.cpu.places import Places, emit_plan, emit_rows, emit_sum
from edgerun.backends.cpu.weights import DenseWeight, Prepared
from edgerun.formats.stack import ExpertStack
from edgerun.graph.ir import Graph, Node
from edgerun.graph.shapes import node_work

INSTRUCTIONS = 9  # of a layer
# Of an expert, on average. Below, the kernels for few rows are as fast or faster in every format,
# and gate and up projection go together: measured with OLMoE's matrices, avx512vnni and avx2
# (docs/benchmarks.md).
ROWS_TO_UNPACK = 128


@dataclass(frozen=True, slots=True)
class _Projection:
    """The same projection of every expert.

    Attributes:
        weights: their matrices.
        biases: their biases, or nothing.
    """

    weights: tuple[Prepared, ...]
    biases: tuple[NDArray[np.float32], ...]

    @property
    def first(self) -> Prepared:
        """The matrix of the first expert, which is like the others."""
        return self.weights[0]

    def memory(self, prefix: str = "") -> list[dict[str, NDArray[Any]]]:
        """The kernel's arguments that are an expert's own, of each; called with a prefix."""
        units = [_memory(weight) for weight in self.weights]
        for unit, bias in zip(units, self.biases, strict=False):
            unit["bias"] = bias
        return [{f"{prefix}{name}": array for name, array in unit.items()} for unit in units]


def emit_experts(binder: Binder, node: Node, index: int) -> None:
    """Emits the whole layer."""
    x_name, routes_name, *stacks = node.inputs
    activations = node.attrs["activations"]
    pairs = zip(stacks[:3], [*stacks[3:], "", "", ""], strict=False)
    gate, up, down = (_prepared(binder, name, bias, activations) for name, bias in pairs)
    counted_by = binder.counted_by[x_name]
    places = emit_plan(binder, node, binder.values[routes_name], counted_by)
    forms = dict.fromkeys(rounding_of(each.first, activations) for each in (gate, up))
    taken = {form: _emit_spread(binder, node, x_name, form, places) for form in forms}
    inner = _emit_inner(binder, node, gate, up, taken, places)
    form = rounding_of(down.first, activations)
    gated = inner if form is None else _emit_rounding(binder, node, inner, form, places)
    made = places.pool.take(down.first.shape[0])
    _emit_product(binder, f"{node.name}/down", down, gated, form, made, places)
    emit_sum(binder, node, made, places)
    places.give(*taken.values(), made, inner, *([] if form is None else [gated]))


def _emit_inner(
    binder: Binder,
    node: Node,
    gate: _Projection,
    up: _Projection,
    taken: Mapping[Rounding | None, Buffer | Rounded],
    places: Places,
) -> Buffer:
    """Emits the gated inner values: in one kernel, unless their blocks of rows need another."""
    inner = places.pool.take(gate.first.shape[0])
    forms = [rounding_of(each.first, node.attrs["activations"]) for each in (gate, up)]
    kernels = [
        kernel_of(binder, each.first, taken[form], form)[:2]
        for each, form in zip((gate, up), forms, strict=True)
    ]
    if kernels[0] == kernels[1] and kernels[0][0] in GATED and not _in_blocks(binder, places):
        _emit_product(
            binder,
            f"{node.name}/inner",
            gate,
            taken[forms[0]],
            forms[0],
            inner,
            places,
            up=up,
            activation=node.attrs["activation"],
        )
        return inner
    other = places.pool.take(gate.first.shape[0])
    sides = (("gate", gate, inner), ("up", up, other))
    for form, (name, projection, out) in zip(forms, sides, strict=True):
        _emit_product(binder, f"{node.name}/{name}", projection, taken[form], form, out, places)
    _emit_gate(binder, node, inner, other, places)
    places.give(other)
    return inner


def _prepared(binder: Binder, name: str, bias: str, activations: str) -> _Projection:
    stack = binder.graph.constants[name]
    biases = binder.graph.constants[bias] if bias else None
    assert isinstance(stack, ExpertStack)
    return _Projection(
        binder.weights.prepare_stack(stack, activations),
        tuple(binder.weights.prepare_vectors(biases)) if isinstance(biases, ExpertStack) else (),
    )


def _emit_spread(
    binder: Binder, node: Node, x_name: str, form: Rounding | None, places: Places
) -> Buffer | Rounded:
    """Emits the copying of rows to their places; they are rounded before that, once each."""
    if form is None:
        x = binder.values[x_name]
        plain = places.pool.take(x.width)
        emit_rows(binder, node, x, plain, places)
        return plain
    rounded = emit_rounding(binder, x_name, form, node)
    out = rounded_buffers(places.pool, form)
    for source, target in zip(rounded.buffers(), out.buffers(), strict=True):
        emit_rows(binder, node, source, target, places)
    return out


def _emit_product(
    binder: Binder,
    label: str,
    projection: _Projection,
    source: Buffer | Rounded,
    form: Rounding | None,
    out: Buffer,
    places: Places,
    *,
    up: _Projection | None = None,
    activation: str = "",
) -> None:
    """Emits the product of every expert's rows, in blocks of rows where these are many.

    With ``up`` the projection is that of a gate, and both are multiplied and combined.
    """
    first, units = projection.first, projection.memory()
    name, params, extra, reads = kernel_of(binder, first, source, form)
    if up is not None:
        units = [{**a, **b} for a, b in zip(units, up.memory("up_"), strict=True)]
        name, params = GATED[name], params | {"activation": activation}
        extra |= {"lookup": 0} if up.biases else {"up_bias": None, "lookup": 0}
    nbytes = sum(array.nbytes for key, array in units[0].items() if key.endswith("codes"))
    step = panels_a_chunk(panels_of(first), nbytes, binder.threads)
    arguments: dict[str, Any] = {
        "rows": binder.frame[:1],
        "bias": None,
        "out": out,
        "n": first.shape[0],
        "panels": panels_of(first),
        "tiles": tiles_of(first),
        "out_stride": out.stride,
        "accumulate": 0,
        "step": step,
        **units[0],
        **extra,
    }
    emit = partial(
        emit_dispatch,
        binder,
        parts=places.parts,
        units=units,
        row_bytes=_row_bytes(source, out),
        rows=places.count,
        chunks=(min(places.experts, places.count), -(-panels_of(first) // step)),
        reads=reads | {places.key},
        writes={out.key},
    )
    in_blocks = name in IN_BLOCKS and _in_blocks(binder, places)
    lookup = {"lookup": gemm_tokens(binder.isa) * in_blocks} if name in IN_BLOCKS else {}
    emit(name, params, arguments | lookup, label=label)
    if in_blocks:
        tokens = {"tokens": gemm_tokens(binder.isa)}
        kernel = f"{binder.isa.prompts}_{IN_BLOCKS[name]}"
        emit(kernel, params | tokens, arguments, label=f"{label}/product")


def _in_blocks(binder: Binder, places: Places) -> bool:
    """Whether experts get so many rows that unpacking their weights once pays."""
    # The kernel that uses tiles leaves small parts alone by itself.
    many = binder.isa.prompts == "amx" or places.count >= ROWS_TO_UNPACK * places.experts
    return many and by_gemm(binder)


def _memory(weight: Prepared) -> dict[str, NDArray[Any]]:
    """The arguments that are a weight's own."""
    if isinstance(weight, DenseWeight):
        return {"codes": weight.values}
    return {"codes": weight.codes, "scales": weight.scales}


def _row_bytes(source: Buffer | Rounded, out: Buffer) -> dict[str, int]:
    buffers = {"out": out}
    if isinstance(source, Buffer):
        buffers["x"] = source
    else:
        buffers["x"] = source.codes
        scaled = {"x_scale": source.scales, "x_sum": source.sums}
        buffers |= {name: buffer for name, buffer in scaled.items() if buffer is not None}
    return {name: buffer.stride * buffer.array.itemsize for name, buffer in buffers.items()}


def _emit_gate(binder: Binder, node: Node, gate: Buffer, up: Buffer, places: Places) -> None:
    binder.emit(
        "gate",
        {"activation": node.attrs["activation"], "lanes": binder.isa.float_lanes},
        {
            "rows": binder.count(places.counted_by),
            "gate": gate,
            "gate_stride": gate.stride,
            "up": up,
            "up_stride": up.stride,
            "out": gate,
            "out_stride": gate.stride,
            "width": gate.width,
            "pieces": 1,
        },
        chunks=(places.counted_by, places.top_k, 1),
        reads={gate.key, up.key},
        writes={gate.key},
        label=f"{node.name}/activation",
        rows=places.count,
    )


def _emit_rounding(
    binder: Binder, node: Node, x: Buffer, form: Rounding, places: Places
) -> Rounded:
    rounded = rounded_buffers(places.pool, form)
    chunks = (places.counted_by, places.top_k, 1)
    round_rows(binder, node, x, form, rounded, chunks, places.count)
    return rounded


def _stacks(graph: Graph, node: Node) -> list[ExpertStack]:
    constants = (graph.constants[name] for name in node.inputs[2:5])
    return [constant for constant in constants if isinstance(constant, ExpertStack)]


def _supports(graph: Graph, node: Node) -> Support:
    answers = [can_multiply(stack.matrices[0]) for stack in _stacks(graph, node)]
    return next((answer for answer in answers if not answer), Support(True))


def _cost(graph: Graph, node: Node, shape: Shape, speeds: Speeds) -> float:
    """The times to stream the experts that have rows and to multiply, and to start kernels."""
    work, activations = node_work(graph, node, graph.shapes), str(node.attrs["activations"])
    stacks, rows = _stacks(graph, node), shape.rows
    active = work.active_experts(rows)
    stored = sum(weight_bytes(stack, activations, trits=False) for stack in stacks)
    streamed = speeds.stream_seconds(stored * active / work.experts)
    kernels = family_of(stacks[0].matrices[0], activations, trits=False)
    rows_an_expert = max(1, round(rows * work.chosen / active))
    multiplied = speeds.work_seconds(work.macs * rows, kernels, rows_an_expert)
    seconds = max(streamed, multiplied) if rows == 1 else streamed + multiplied
    return seconds + speeds.start_seconds(INSTRUCTIONS)


EMITTER = Emitter(emit_experts, _supports, _cost)
