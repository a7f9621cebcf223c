"""Cases of the kernels that multiply a gate and an up projection side by side."""

from __future__ import annotations

from typing import Any

from edgerun.formats.base import PackedWeight
from edgerun.kernels.layouts.stream import to_stream
from edgerun.kernels.linear.gemm import MOST_ROWS
from edgerun.ops.registry import OPS
from edgerun_export.quantize.blocks import slab
from tests.conformance.kernels.cases.linear import (
    BLOCK_FORMS,
    HALF_FORMS,
    IN_TURNS,
    ROW_FORMS,
    STEP,
    ZERO_FORMS,
    chunks,
    in_blocks,
    packed_weight,
    rounded_block,
    rounded_row,
    shared_chunks,
    stream_fields,
    variants,
)
from tests.conformance.kernels.harness import (
    F32,
    UNTOUCHED,
    Call,
    assert_near,
    cases_of,
    ordered_for,
    random,
    unpacked,
    untouched,
)
from tests.conformance.kernels.tile_order import ordered

BOUND = 4e-6
# Outputs, inputs, batch rows, and whether there are biases.
SHAPES = [(9, 320, 3, True), (70, 704, 1, False), (150, 352, 13, True)]
# Several slabs and pieces of K, more rows than share a piece, and rows that fill no tile.
MANY = [*SHAPES, (131, 4480, 19, True), (2, 96, MOST_ROWS + 5, False)]
ALONE = {"matrices": 1, "activation": "relu"}  # a network without a gate


def call_of(
    weights: list[PackedWeight], x: F32, rounded: dict[str, Any], params: dict[str, Any], form: str
) -> Call:
    """A call, whose check goes by the definitions of three ops."""
    lanes, is_row = params["lanes"], form == "int8_row"
    gate, up = (
        to_stream(each, lanes, row_scale=True) if is_row else in_blocks(each, lanes)
        for each in weights
    )
    rows, n, tokens = len(x), gate.shape[0], params.get("tokens", 1)
    taken = min(rows, (rows + tokens // 2) // tokens * tokens)
    biased = params.pop("biased")
    seeds = (5, 6) if params["matrices"] == 2 else (5, 5)
    biases = [random((n,), seed) if biased else None for seed in seeds]
    projections = [
        OPS["linear"].define(x, weight, bias, None, activations=form)
        for weight, bias in zip(weights, biases, strict=True)
    ]
    expected = OPS["gate"].define(*projections, activation=params["activation"])
    out = untouched((rows, n + 3))

    def check() -> None:
        assert_near(out[:taken, :n], expected[:taken], BOUND)
        assert (out[taken:] == UNTOUCHED).all()
        assert (out[:, n:] == UNTOUCHED).all()

    fields = stream_fields(gate, STEP)
    fields |= ordered(rounded, params | {"bits": gate.bits}) if "tokens" in params else rounded
    fields |= {"up_codes": up.codes, "up_scales": up.scales, "accumulate": 0}
    fields |= {"least": 0} if "tokens" in params else IN_TURNS
    fields |= {"out": out, "out_stride": n + 3, "n": n}
    fields |= {"bias": 0 if biases[0] is None else biases[0]}
    fields |= {"up_bias": 0 if biases[1] is None else biases[1]}
    count = chunks(gate, STEP) if "tokens" in params else shared_chunks(gate)
    return Call(params | {"bits": gate.bits}, fields, rows, check, count)


def pair(
    form: tuple[str, int], shape: tuple[int, int, int, bool], matrices: int, *, row_scale: bool
) -> list[PackedWeight]:
    """A gate and an up projection, which differ if they are two matrices."""
    n, k = shape[:2]
    gate = packed_weight(form, n, k, row_scale=row_scale)
    if matrices == 1:
        return [gate, gate]
    other = packed_weight(form, n + 1, k, row_scale=row_scale)
    return [gate, slab(other, slice(1, None))]


def row_call(
    variant: tuple[str, int, tuple[str, int]], shape: tuple[int, int, int, bool], **more: Any
) -> Call:
    isa, lanes, form = variant
    params = {"activation": "silu", "matrices": 2, "lanes": lanes, "isa": isa} | more
    weights = pair(form, shape, params["matrices"], row_scale=True)
    x = random((shape[2], weights[0].shape[1]))
    rounded = rounded_row(x, to_stream(weights[0], lanes, row_scale=True).padded_k)
    return call_of(weights, x, rounded, params | {"biased": shape[3]}, "int8_row")


def block_call(
    variant: tuple[str, int, tuple[str, int]], shape: tuple[int, int, int, bool], **more: Any
) -> Call:
    isa, lanes, form = variant
    params = {"activation": "silu", "matrices": 2, "lanes": lanes, "isa": isa} | more
    weights = pair(form, shape, params["matrices"], row_scale=False)
    block = weights[0].block
    x = random((shape[2], weights[0].shape[1]))
    gate = in_blocks(weights[0], lanes)
    rounded = rounded_block(x, gate.padded_k, block)
    params |= {"block": block, "zeros": int(gate.zeros), "halves": int(gate.halves)}
    params |= {"biased": shape[3]}
    return call_of(weights, x, rounded, params, "int8_block")


@cases_of("gated_row", variant=variants(ROW_FORMS), shape=SHAPES)
def gated_row(variant: tuple[str, int, tuple[str, int]], shape: tuple[int, int, int, bool]) -> Call:
    return row_call(variant, shape)


@cases_of(
    "gated_block",
    variant=variants(BLOCK_FORMS) + variants(ZERO_FORMS[:1]) + variants(HALF_FORMS)[:2],
    shape=SHAPES,
)
def gated_block(
    variant: tuple[str, int, tuple[str, int]], shape: tuple[int, int, int, bool]
) -> Call:
    return block_call(variant, shape)


@cases_of("gemm_gated_row", variant=variants(ROW_FORMS[-2:]), shape=MANY)
def gemm_gated_row(
    variant: tuple[str, int, tuple[str, int]], shape: tuple[int, int, int, bool]
) -> Call:
    return row_call(variant, shape, **unpacked(variant[0]))


@cases_of(
    "gemm_gated_block",
    variant=variants(BLOCK_FORMS[-2:]) + variants(ZERO_FORMS[:1]) + variants(HALF_FORMS)[:2],
    shape=MANY,
)
def gemm_gated_block(
    variant: tuple[str, int, tuple[str, int]], shape: tuple[int, int, int, bool]
) -> Call:
    return block_call(variant, shape, **ordered_for(variant[0]))


@cases_of("gated_row", variant=variants(ROW_FORMS)[:1], shape=SHAPES)
def row_alone(variant: tuple[str, int, tuple[str, int]], shape: tuple[int, int, int, bool]) -> Call:
    return row_call(variant, shape, **ALONE)


@cases_of(
    "gated_block", variant=variants(BLOCK_FORMS)[1:2] + variants(ZERO_FORMS)[:1], shape=SHAPES
)
def block_alone(
    variant: tuple[str, int, tuple[str, int]], shape: tuple[int, int, int, bool]
) -> Call:
    return block_call(variant, shape, **ALONE)


@cases_of("gemm_gated_row", variant=variants(ROW_FORMS)[:1], shape=MANY)
def gemm_row_alone(
    variant: tuple[str, int, tuple[str, int]], shape: tuple[int, int, int, bool]
) -> Call:
    return row_call(variant, shape, **unpacked(variant[0]), **ALONE)


@cases_of("gemm_gated_block", variant=variants(BLOCK_FORMS)[1:2], shape=MANY, packed=[0, 1])
def gemm_block_alone(
    variant: tuple[str, int, tuple[str, int]], shape: tuple[int, int, int, bool], packed: int
) -> Call:
    return block_call(variant, shape, **ordered_for(variant[0], packed), **ALONE)
