"""Cases of the linear kernels: formats, odd shapes, biases, residuals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from edgerun.formats import format_named
from edgerun.formats.base import PackedWeight, has_half_scales, pack_zero_points
from edgerun.kernels.lang.isa import isa_of
from edgerun.kernels.layouts.stream import StreamWeight, to_stream
from edgerun.kernels.layouts.trits import TritWeight
from edgerun.kernels.run.shares import count_chunks
from edgerun.ops import linear
from edgerun.ops.registry import OPS
from tests.conformance.kernels.harness import (
    F32,
    ISAS,
    UNTOUCHED,
    Call,
    assert_near,
    cases_of,
    random,
    untouched,
)

BOUND = 2e-6
STEP = 5  # panels of a chunk: the four streams are of one and of two
FLOAT_LANES = 32
# Instruction sets and vector bytes. Where AVX-512 code cannot run, its structure (64-byte vectors,
# unsigned 8-bit codes with an offset) is tested in generic operations.
WIDE, MODEL = "avx512vnni", "vnni_model"
TRIED = ISAS if WIDE in ISAS else (*ISAS, MODEL)
VECTORS = [(isa, isa_of(isa).vector_bytes) for isa in TRIED]
FLOAT_FORMS = [("ternary", 32), ("int4+", 32), ("int4^", 32), ("int4", 16), ("int8", 128)]
OTHER_LANES = sorted({lanes for _, lanes in VECTORS} - {FLOAT_LANES})
# Outputs, inputs, batch rows, and whether there are a bias and a residual.
SHAPES = [(4, 64, 1, False), (9, 320, 3, True), (70, 704, 6, False), (150, 352, 7, True)]


def variants(forms: list[tuple[str, int]]) -> list[tuple[str, int, tuple[str, int]]]:
    """All forms on the best instruction set, two on the others: compiling takes the time."""
    best = VECTORS[0]
    return [(*each, form) for each in VECTORS for form in (forms if each == best else forms[:2])]


def expectation(x: F32, weight: Any, extras: bool, activations: str) -> tuple[dict[str, Any], Any]:
    """Fields of bias and output, and the check of the output."""
    rows, n = len(x), weight.shape[0]
    bias, out = random((n,), 5), untouched((rows, n + 3))
    residual = random((rows, n), 6)
    out[:, :n] = residual
    expected = OPS["linear"].define(
        x, weight, bias if extras else None, residual if extras else None, activations=activations
    )

    def check() -> None:
        assert_near(out[:, :n], expected, BOUND)
        assert (out[:, n:] == UNTOUCHED).all()

    fields = {"bias": bias if extras else 0, "out": out, "out_stride": n + 3, "n": n}
    return fields | {"accumulate": int(extras)}, check


def stream_fields(weight: StreamWeight, step: int) -> dict[str, Any]:
    """Fields that describe a weight."""
    panels, tiles = weight.codes.shape[:2]
    fields = {"codes": weight.codes, "scales": weight.scales, "panels": panels, "tiles": tiles}
    return fields | {"step": step}


def chunks(weight: StreamWeight | TritWeight, step: int) -> int:
    """Chunks of ``step`` panels."""
    return -(-len(weight.codes) // step)


def shared_chunks(weight: StreamWeight | TritWeight) -> int:
    """Chunks of the kernels whose rows take turns."""
    return count_chunks(len(weight.codes), IN_TURNS["step"], IN_TURNS["threads"])


def packed_weight(form: tuple[str, int], n: int, k: int, *, row_scale: bool) -> PackedWeight:
    """A random weight, with equal scales along a row if asked; every other scale is negative.

    A name that ends in ``+`` is a format with zero points of its own, one in ``^`` with offsets;
    with one that ends in ``~`` half precision holds all scales.
    """
    name, block = form
    if name.endswith("^"):
        return with_offsets(packed_weight((f"{name[:-1]}~", block), n, k, row_scale=row_scale))
    halves, name = name.endswith("~"), name.removesuffix("~")
    if name.endswith("+"):
        plain = name[:-1] + "~" * halves
        return with_zeros(packed_weight((plain, block), n, k, row_scale=row_scale))
    weight, kind = random((n, -(-k // block) * block), 7), format_named(name)
    scales = kind.pack(weight, block).scales
    if row_scale:
        scales = np.repeat(np.abs(weight).max(axis=1, keepdims=True) / 2, scales.shape[1], 1)
    scales = scales.astype(np.float16).astype(np.float32) if halves else scales
    odd = np.arange(n)[:, None] + (0 if row_scale else np.arange(scales.shape[1]))
    return kind.encode(weight, np.where(odd % 2, -scales, scales).astype(np.float32), block)


def with_zeros(packed: PackedWeight) -> PackedWeight:
    """The same codes and scales with random zero points, the least and the greatest among them."""
    bits, (n, blocks) = packed.bits, packed.scales.shape
    points = np.random.default_rng(blocks).integers(0, 1 << bits, (n, blocks), np.uint8)
    points[0, 0], points[-1, -1] = 0, (1 << bits) - 1
    return replace(packed, zeros=pack_zero_points(points, bits))


def with_offsets(packed: PackedWeight) -> PackedWeight:
    """The same codes and scales with random offsets, of the size of weights."""
    return replace(packed, offsets=random(packed.scales.T.shape, 11).astype(np.float16))


def in_blocks(packed: PackedWeight, lanes: int) -> StreamWeight:
    """A weight as kernels read it whose activations have scales of blocks, too."""
    return to_stream(packed, lanes, row_scale=False, halves=has_half_scales(packed))


def block_params(weight: StreamWeight, block: int) -> dict[str, Any]:
    """Compile-time constants of the kernels of weights with scales of blocks."""
    constants = {"bits": weight.bits, "lanes": weight.lanes, "block": block}
    return constants | {"zeros": int(weight.zeros), "halves": int(weight.halves)}


def rounded_row(x: F32, stride: int) -> dict[str, Any]:
    """Fields of activations with one scale a row."""
    codes, scale = linear.quantize_row(x)
    q = np.zeros((len(x), stride), np.int8)
    q[:, : x.shape[1]] = codes
    fields = {"x": q, "x_stride": stride, "x_scale": scale}
    return fields | {"x_sum": q.sum(axis=1, dtype=np.int32)}


def rounded_block(x: F32, stride: int, block: int) -> dict[str, Any]:
    """Fields of activations with one scale a block."""
    padded = np.zeros((len(x), stride), np.float32)
    padded[:, : x.shape[1]] = x
    q, scales = linear.quantize_block(padded, block)
    sums = q.reshape(len(x), -1, block).sum(axis=2, dtype=np.int32)
    fields = {"x": np.ascontiguousarray(q), "x_stride": stride, "x_scale": scales}
    return fields | {"x_sum": sums, "blocks": scales.shape[1]}


# All rows; a first chunk of most panels, then smaller ones: of ten panels six, two and two.
IN_TURNS = {"tokens": 0, "least": 0, "step": 2, "threads": 1}
ROW_FORMS = [("ternary", 32), ("int8", 32), ("int4", 32)]


@cases_of("linear_row", variant=variants(ROW_FORMS), shape=SHAPES)
def linear_row(
    variant: tuple[str, int, tuple[str, int]], shape: tuple[int, int, int, bool]
) -> Call:
    isa, lanes, form = variant
    n, k, rows, extras = shape
    packed = packed_weight(form, n, k, row_scale=True)
    x = random((rows, packed.shape[1]))
    weight = to_stream(packed, lanes, row_scale=True)
    fields, check = expectation(x, packed, extras, "int8_row")
    fields |= stream_fields(weight, STEP) | rounded_row(x, weight.padded_k) | IN_TURNS
    params = {"bits": weight.bits, "lanes": weight.lanes, "isa": isa}
    return Call(params, fields, rows, check, shared_chunks(weight))


BLOCK_FORMS = [("int4", 16), ("int8", 32), ("int4", 128), ("int2", 128)]
ZERO_FORMS = [("int4+", 32), ("int2+", 16), ("int8+", 32)]
HALF_FORMS = [("int4~", 32), ("int4^", 32), ("int2+~", 32), ("int8+~", 16)]
OFFSET_FORMS = [("int2^", 16), ("int8^", 32)]


@cases_of(
    "linear_block",
    variant=variants(BLOCK_FORMS)
    + variants(ZERO_FORMS)
    + variants(HALF_FORMS)
    + variants(OFFSET_FORMS),
    shape=SHAPES,
)
def linear_block(
    variant: tuple[str, int, tuple[str, int]], shape: tuple[int, int, int, bool]
) -> Call:
    isa, lanes, form = variant
    n, k, rows, extras = shape
    packed = packed_weight(form, n, k, row_scale=False)
    x = random((rows, packed.shape[1]))
    weight = in_blocks(packed, lanes)
    fields, check = expectation(x, packed, extras, "int8_block")
    fields |= stream_fields(weight, STEP) | rounded_block(x, weight.padded_k, packed.block)
    fields |= IN_TURNS
    params = block_params(weight, packed.block) | {"isa": isa}
    return Call(params, fields, rows, check, shared_chunks(weight))


@cases_of("linear_float", lanes=[FLOAT_LANES], form=FLOAT_FORMS, shape=SHAPES)
@cases_of("linear_float", lanes=OTHER_LANES, form=FLOAT_FORMS[:2], shape=SHAPES)
def linear_float(lanes: int, form: tuple[str, int], shape: tuple[int, int, int, bool]) -> Call:
    n, k, rows, extras = shape
    packed = packed_weight(form, n, k, row_scale=False)
    weight = to_stream(packed, lanes, row_scale=False)
    x = np.zeros((rows, weight.padded_k), np.float32)
    x[:, : packed.shape[1]] = random((rows, packed.shape[1]))
    fields, check = expectation(x[:, : packed.shape[1]], packed, extras, "float")
    fields |= stream_fields(weight, STEP) | {"x": x, "x_stride": weight.padded_k}
    fields |= {"blocks": weight.blocks, "step": IN_TURNS["step"], "threads": IN_TURNS["threads"]}
    params = block_params(weight, packed.block)
    del params["halves"]
    return Call(params, fields, rows, check, shared_chunks(weight))


@cases_of("linear_dense", shape=SHAPES)
def linear_dense(shape: tuple[int, int, int, bool]) -> Call:
    n, k, rows, extras = shape
    weight, x = random((n, k)), random((rows, k), 1, gap=3)
    fields, check = expectation(x[:, :k], weight, extras, "float")
    fields |= {"codes": weight, "panels": -(-n // 4), "tiles": k // 8, "step": 2}
    fields |= {"x": x, "x_stride": k + 3, "threads": 2}
    return Call({"width": 8}, fields, rows, check, count_chunks(-(-n // 4), 2, 2))
