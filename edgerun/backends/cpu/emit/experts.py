"""Layers of experts: rows sorted by expert, and each expert's weights read once a batch.

A batch is spread over places (``places.py``); products are dispatched, each expert's rows to its
weights (``dispatch.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from edgerun.backends.base import FEW_ROWS, Shape, Support
from edgerun.backends.cpu.binder import Binder, Rounded, Rounding
from edgerun.backends.cpu.buffers import Buffer
from edgerun.backends.cpu.emit.blocks import experts as blocks
from edgerun.backends.cpu.emit.blocks.gemm import IN_BLOCKS
from edgerun.backends.cpu.emit.emitter import Emitter, Speeds
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
from edgerun.backends.cpu.experts.layout import Projection, rows_of
from edgerun.backends.cpu.experts.program.dispatch import Units, emit_dispatch
from edgerun.backends.cpu.experts.program.places import Places, emit_plan, emit_rows, emit_sum
from edgerun.backends.cpu.experts.program.waves import Wave, emit_fetch, waves_of
from edgerun.backends.cpu.experts.weights import ExpertWeights, stacks_of
from edgerun.backends.cpu.families import family_of, weight_bytes
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Graph, Node
from edgerun.graph.shapes import node_work
from edgerun.kernels.run.instructions import Instruction

INSTRUCTIONS = 9  # of a layer
EQUAL_CHUNKS = {"threads": 0}  # of an expert: threads share all experts of a batch


@dataclass(frozen=True, slots=True)
class _Inner:
    """What lies between the products of a layer.

    Attributes:
        gate: the projection that is activated.
        up: what it is multiplied by, which is the same in networks without a gate.
        taken: rows at their places, by how they are rounded.
        out: the product.
        other: the up projection, where that is computed by itself.
        is_joint: whether one kernel does all.
    """

    gate: Projection
    up: Projection
    taken: Mapping[Rounding | None, Buffer | Rounded]
    out: Buffer
    other: Buffer | None
    is_joint: bool

    def buffers(self) -> list[Buffer | Rounded]:
        """All that it takes."""
        own = [self.out] if self.other is None else [self.out, self.other]
        return [*self.taken.values(), *own]


class Helper(Protocol):
    """Has some experts of a layer computed elsewhere while the program computes the others."""

    def begin(self, binder: Binder, node: Node, places: Places, x: Buffer) -> None:
        """Emits what gives experts away: those that are left are in ``places.parts``."""

    def end(
        self,
        binder: Binder,
        node: Node,
        places: Places,
        results: Buffer,
        steps: Sequence[Instruction],
    ) -> None:
        """Emits what takes their results; ``steps`` compute those of ``places.parts``."""


def emit_experts(binder: Binder, node: Node, index: int, helper: Helper | None = None) -> None:
    """Emits the whole layer, of which ``helper`` may have some experts computed elsewhere."""
    x_name, routes_name = node.inputs[:2]
    activations = node.attrs["activations"]
    weights = binder.experts.prepare(binder.graph, node)
    x = binder.values[x_name]
    gate, up, down = weights.matrices
    counted_by = binder.counted_by[x_name]
    places = emit_plan(binder, node, binder.values[routes_name], counted_by)
    waves = waves_of(weights, places)
    emit_fetch(binder, node, weights, places, waves[0], x)
    if helper is not None:
        helper.begin(binder, node, places, x)
    first = len(binder.instructions)
    inner = _inner(binder, node, gate, up, places)
    form = rounding_of(down.weight, activations)
    gated = inner.out if form is None else rounded_buffers(places.pool, form)
    results = places.pool.take(down.weight.shape[0])
    for wave in waves:
        if wave.first:
            emit_fetch(binder, node, weights, places, wave, x)
        product = partial(_emit_product, binder, weights, places, wave)
        _emit_inner(binder, node, product, inner, places)
        if form is not None and isinstance(gated, Rounded):
            _emit_rounding(binder, node, inner.out, form, gated, places)
        product(f"{node.name}/down", down, gated, form, results)
    if helper is not None:
        helper.end(binder, node, places, results, binder.instructions[first:])
    emit_sum(binder, node, results, places)
    places.give(*inner.buffers(), results, *([] if form is None else [gated]))


def emit_first_products(binder: Binder, node: Node, index: int) -> None:
    """Emits some columns of what lies between the products, of rows that go to one expert each.

    They are those of the panels ``panels`` of gate and up projection, from the first of these to
    before the second.
    """
    x_name, routes_name = node.inputs[:2]
    weights = binder.experts.prepare(binder.graph, node)
    gate, up = (rows_of(each, *node.attrs["panels"]) for each in weights.matrices[:2])
    places = emit_plan(binder, node, binder.values[routes_name], binder.counted_by[x_name])
    (wave,) = waves_of(weights, places)
    inner = _inner(binder, node, gate, up, places)
    product = partial(_emit_product, binder, weights, places, wave)
    _emit_inner(binder, node, product, inner, places)
    emit_sum(binder, node, inner.out, places)
    places.give(*inner.buffers())


def emit_second_product(binder: Binder, node: Node, index: int) -> None:
    """Emits some columns of the result, from all of what lies between; see the one before."""
    x_name, routes_name = node.inputs[:2]
    weights = binder.experts.prepare(binder.graph, node)
    down = rows_of(weights.matrices[2], *node.attrs["panels"])
    places = emit_plan(binder, node, binder.values[routes_name], binder.counted_by[x_name])
    (wave,) = waves_of(weights, places)
    form = rounding_of(down.weight, node.attrs["activations"])
    taken = _emit_spread(binder, node, x_name, form, places)
    results = places.pool.take(down.weight.shape[0])
    _emit_product(binder, weights, places, wave, f"{node.name}/down", down, taken, form, results)
    emit_sum(binder, node, results, places)
    places.give(taken, results)


def _inner(binder: Binder, node: Node, gate: Projection, up: Projection, places: Places) -> _Inner:
    """Takes memory, and emits the copying of rows to their places."""
    x_name, activations, pool = node.inputs[0], node.attrs["activations"], places.pool
    forms = dict.fromkeys(rounding_of(each.weight, activations) for each in (gate, up))
    taken = {form: _emit_spread(binder, node, x_name, form, places) for form in forms}
    is_joint = _is_joint(binder, gate, up, taken, activations)
    has_other = not is_joint and _matrices(gate, up) == 2
    out = pool.take(gate.weight.shape[0])
    other = pool.take(up.weight.shape[0]) if has_other else None
    return _Inner(gate, up, taken, out, other, is_joint)


def _emit_inner(
    binder: Binder, node: Node, product: Callable[..., None], inner: _Inner, places: Places
) -> None:
    """Emits gate and up projection and their product."""
    gate, up, taken, activations = inner.gate, inner.up, inner.taken, node.attrs["activations"]
    form = rounding_of(gate.weight, activations)
    if inner.is_joint:
        joint = {"up": up, "activation": node.attrs["activation"]}
        product(f"{node.name}/inner", gate, taken[form], form, inner.out, **joint)
        return
    product(f"{node.name}/gate", gate, taken[form], form, inner.out)
    if inner.other is not None:
        form = rounding_of(up.weight, activations)
        product(f"{node.name}/up", up, taken[form], form, inner.other)
    _emit_gate(binder, node, inner.out, inner.other or inner.out, places)


def _matrices(gate: Projection, up: Projection) -> int:
    """How many matrices two projections are: one in networks without a gate."""
    return 1 if gate.offsets == up.offsets else 2


def _is_joint(
    binder: Binder,
    gate: Projection,
    up: Projection,
    taken: Mapping[Rounding | None, Buffer | Rounded],
    activations: str,
) -> bool:
    """Whether one kernel multiplies gate and up."""
    forms = [rounding_of(each.weight, activations) for each in (gate, up)]
    kernels = [
        kernel_of(binder, each.weight, taken[form], form)[:2]
        for each, form in zip((gate, up), forms, strict=True)
    ]
    return kernels[0] == kernels[1] and kernels[0][0] in GATED


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
    weights: ExpertWeights,
    places: Places,
    wave: Wave,
    label: str,
    matrix: Projection,
    source: Buffer | Rounded,
    form: Rounding | None,
    out: Buffer,
    *,
    up: Projection | None = None,
    activation: str = "",
) -> None:
    """Emits the product of every expert's rows, in blocks of rows where these are many.

    With ``up`` the matrix is that of a gate, and both are multiplied and combined.
    """
    weight, arrays, offsets = matrix.weight, {**matrix.arrays}, {**matrix.offsets}
    matrices = 1 if up is None else _matrices(matrix, up)
    name, params, extra, reads = kernel_of(binder, weight, source, form)
    if up is not None:
        arrays |= {f"up_{key}": array for key, array in up.arrays.items()}
        offsets |= {f"up_{key}": offset for key, offset in up.offsets.items()}
        name, params = GATED[name], params | {"activation": activation, "matrices": matrices}
        extra |= {} if "up_bias" in arrays else {"up_bias": None}
    nbytes, panels = matrices * matrix.arrays["codes"].nbytes, panels_of(weight)
    step = panels_a_chunk(panels, nbytes, binder.threads, _experts_at_least(places))
    arguments: dict[str, Any] = {
        "rows": binder.frame[:1],
        "bias": None,
        "out": out,
        "n": weight.shape[0],
        "panels": panels,
        "tiles": tiles_of(weight),
        "out_stride": out.stride,
        "accumulate": 0,
        "step": step,
        **arrays,
        **extra,
    }
    control = None if weights.words is None else weights.words.control
    emit = partial(
        emit_dispatch,
        binder,
        units=Units(places.parts, wave.first, weights.table, control, offsets),
        rows=places.count,
        chunks=(wave.parts, -(-panels // step)),
        writes={out.key},
    )
    has_blocks = blocks.unpacks(binder, name, params, places)
    division = blocks.division(binder, in_blocks=has_blocks) if name in IN_BLOCKS else {}
    reads, apart, turns = reads | {places.key}, _row_bytes(source, out), EQUAL_CHUNKS | division
    emit(name, params, arguments | turns, reads=reads, row_bytes=apart, label=label)
    if has_blocks:
        single = name, params, arguments | division, apart
        many = blocks.in_blocks(binder, single, places, wave, label)
        many.emit(emit, reads, f"{label}/product")
        places.give(*many.taken())


def _experts_at_least(places: Places) -> int:
    """How many experts share a product with all threads, as far as chunks go by that.

    Those of few rows are mere reading, which long chunks speed up. Of many rows some experts may
    have far more than others, so chunks are as short as those of one alone.
    """
    return places.top_k if places.rows <= FEW_ROWS else 1


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
    binder: Binder, node: Node, x: Buffer, form: Rounding, rounded: Rounded, places: Places
) -> None:
    chunks = (places.counted_by, places.top_k, 1)
    round_rows(binder, node, x, form, rounded, chunks, places.count)


def _supports(graph: Graph, node: Node) -> Support:
    first = [stack.matrices[0] for stack in stacks_of(graph, node)]
    if any(isinstance(matrix, PackedWeight) and matrix.offsets is not None for matrix in first):
        return Support(False, "experts whose blocks of weights have offsets")
    return next((answer for answer in map(can_multiply, first) if not answer), Support(True))


def _cost(graph: Graph, node: Node, shape: Shape, speeds: Speeds) -> float:
    """The times to stream the experts that have rows and to multiply, and to start kernels."""
    work, activations = node_work(graph, node, graph.shapes), str(node.attrs["activations"])
    stacks, rows = stacks_of(graph, node), shape.rows
    active = work.active_experts(rows)
    matrices = {id(stack): stack for stack in stacks}.values()
    stored = sum(weight_bytes(stack, activations, trits=False) for stack in matrices)
    streamed = speeds.stream_seconds(stored * active / work.experts)
    kernels = family_of(stacks[0].matrices[0], activations, trits=False)
    rows_an_expert = max(1, round(rows * work.chosen / active))
    multiplied = speeds.work_seconds(work.macs * rows, kernels, rows_an_expert)
    seconds = max(streamed, multiplied) if rows == 1 else streamed + multiplied
    return seconds + speeds.start_seconds(INSTRUCTIONS)


# Of experts that are cut by columns; no graph has them, ``CpuBackend.compile_with`` takes them.
CUT_PRODUCTS = {
    "experts_first": Emitter(emit_first_products),
    "experts_second": Emitter(emit_second_product),
}
EMITTER = Emitter(emit_experts, _supports, _cost)
