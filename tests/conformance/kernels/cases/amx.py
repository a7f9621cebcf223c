"""Cases of the products by AMX: on the processor where it has that, everywhere on a model of it.

``python -m tools.emulate_isa x86 --cpu sapphirerapids`` runs them on an emulated processor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgerun.backends.cpu.families import AMX
from edgerun.backends.cpu.row_paths import block_tokens
from edgerun.formats import dense
from edgerun.formats.base import PackedWeight
from edgerun.kernels.lang.isa import isa_of
from edgerun.kernels.layouts.stream import StreamWeight, to_stream
from edgerun.kernels.layouts.tile_order import (
    TOKENS,
    TileOrder,
    register_order,
    vector_order,
)
from edgerun.ops.registry import OPS
from edgerun_export.quantize.blocks import slab
from tests.conformance.kernels.cases.gemm import MANY, STEP, exact_outputs
from tests.conformance.kernels.cases.linear import (
    BOUND,
    HALF_FORMS,
    ZERO_FORMS,
    block_params,
    in_blocks,
    packed_weight,
    rounded_block,
    rounded_row,
    stream_fields,
)
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
from tests.conformance.kernels.tile_order import in_tile_order, turned

LANES = 64
LEAST = 16  # rows of a batch
UNITS = ["amx_model", *({"amx"} & set(ISAS))]
# Outputs, inputs, batch rows, and whether there are a bias and a residual: too few rows, less
# than a tile, one of them, almost and a little more than two, and many.
SHAPES = [
    (4, 64, LEAST - 1, False),
    (9, 320, LEAST, True),
    (70, 704, 31, False),
    (33, 128, 33, True),
    MANY[1],
]
LONG = MANY[0]  # more of K than a piece of the other kernels has
WIDE = (1040, 64, 257, False)  # outputs that go past the caches
ASKEW = (1040, 64, 258, False)  # as many, off cache lines, which must not
ROW_FORMS = [("ternary", 32), ("int8", 32), ("int4", 32)]
BLOCK_FORMS = [("int4", 16), ("int8", 32), ("int4", 128), ("int2", 128)]
SLOTS, STRIP = 2, 4  # of chunks of 5 panels: two strips, the second not full
Shape = tuple[int, int, int, bool]
Variant = tuple[str, tuple[str, int], bool, Shape]


def variants(forms: list[tuple[str, int]]) -> list[Any]:
    """All forms and shapes with AMX, and fewer with its model: compiling takes the time."""
    of_units = [
        (unit, form, is_packed, shape)
        for unit in UNITS
        for form in forms
        for is_packed in (True, False)
        for shape in [*SHAPES, WIDE, ASKEW]
    ]
    of_units = [each for each in of_units if each[0] == "amx" or each[1] == forms[0]]
    return of_units + [("amx", form, True, LONG) for form in forms if "amx" in UNITS]


def tile_fields(fields: dict[str, Any], block: int, is_packed: bool) -> dict[str, Any]:
    """Fields of activations as kernels of tiles take them, and of memory for their strips."""
    k, blocks = fields["x"].shape[1], fields.get("blocks", 0)
    each = STRIP * 16 * k + (0 if is_packed else TOKENS * (k + 8 * blocks))
    areas = np.full((SLOTS, each), 0x55, np.uint8)
    fields = fields | {"areas": areas, "area_bytes": each, "strip": STRIP}
    fields |= {"taken": np.zeros((SLOTS, 8), np.int64), "slots": SLOTS, "least": LEAST}
    if is_packed:
        fields["x"] = in_tile_order(fields["x"], register_order(block))
        if block:
            fields |= {name: turned(fields[name], TOKENS) for name in ("x_scale", "x_sum")}
    return fields


def output(rows: int, n: int) -> tuple[F32, int]:
    """An output and its stride: on cache lines if it is large, and off them otherwise."""
    if (rows, n) != (WIDE[2], WIDE[0]):
        return untouched((rows, n + 3)), n + 3
    memory = untouched((rows * (n + 16) + 16,))
    start = -memory.ctypes.data % 64 // 4
    return memory[start : start + rows * (n + 16)].reshape(rows, n + 16), n + 16


def exact_rows(packed: PackedWeight, fields: dict[str, Any], *added: F32) -> F32:
    """What rows with one scale come to, with the roundings of ``linear_row`` one by one."""
    scales = packed.scales[:, :1]
    codes = np.rint(dense(packed) / scales).astype(np.int64)
    total = fields["x"].astype(np.int64)[:, : codes.shape[1]] @ codes.T
    value = total.astype(np.float32) * fields["x_scale"].reshape(-1, 1) * scales.T
    for vector in added:
        value = value + vector
    return value


def call_of(
    fields: dict[str, Any],
    params: dict[str, Any],
    packed: PackedWeight,
    extras: bool,
    is_packed: bool,
) -> Call:
    """A call with its check; ``fields`` describe weight and activations."""
    rows, n = len(fields["x"]), packed.shape[0]
    taken = rows if rows >= LEAST else 0
    bias, residual, (out, stride) = random((n,), 5), random((rows, n), 6), output(rows, n)
    out[:, :n] = residual
    added = (bias, residual) if extras else ()
    rounded = {name: fields[name] for name in ("x", "x_scale")}
    expected = exact_outputs(packed, rounded) + sum(added)
    fields = tile_fields(fields, params.get("block", 0), is_packed)

    def check() -> None:
        assert_near(out[:taken, :n], expected[:taken].astype(np.float32), BOUND)
        if "block" not in params:
            assert (out[:taken, :n] == exact_rows(packed, rounded, *added)[:taken]).all()
        assert (out[taken:, :n] == residual[taken:]).all()
        assert (out[:, n:] == UNTOUCHED).all()
        assert not fields["taken"].any()

    fields = fields | {"bias": bias if extras else 0, "accumulate": int(extras)}
    fields |= {"out": out, "out_stride": stride, "n": n}
    return Call(params, fields, rows, check, -(-fields["panels"] // STEP))


def constants(isa: str, is_packed: bool) -> dict[str, Any]:
    """Compile-time constants of all kernels of tiles."""
    return {"isa": isa, "tokens": block_tokens(isa_of(isa), AMX), "packed": int(is_packed)}


@cases_of("amx_row", variant=variants(ROW_FORMS))
def amx_row(variant: Variant) -> Call:
    isa, form, is_packed, (n, k, rows, extras) = variant
    packed = packed_weight(form, n, k, row_scale=True)
    weight = to_stream(packed, LANES, row_scale=True)
    rounded = rounded_row(random((rows, packed.shape[1])), weight.padded_k)
    params = {"bits": weight.bits, "lanes": weight.lanes} | constants(isa, is_packed)
    return call_of(stream_fields(weight, STEP) | rounded, params, packed, extras, is_packed)


@cases_of("amx_block", variant=variants(BLOCK_FORMS) + variants(ZERO_FORMS) + variants(HALF_FORMS))
def amx_block(variant: Variant) -> Call:
    isa, form, is_packed, (n, k, rows, extras) = variant
    packed = packed_weight(form, n, k, row_scale=False)
    weight = in_blocks(packed, LANES)
    rounded = rounded_block(random((rows, packed.shape[1])), weight.padded_k, packed.block)
    params = block_params(weight, packed.block) | constants(isa, is_packed)
    return call_of(stream_fields(weight, STEP) | rounded, params, packed, extras, is_packed)


def gated_call(
    fields: dict[str, Any], up: StreamWeight, params: dict[str, Any], pair: list[PackedWeight]
) -> Call:
    """A call for a gate and an up projection."""
    rows, n, matrices = len(fields["x"]), pair[0].shape[0], params["matrices"]
    seeds = (5, 6) if matrices == 2 else (5, 5)
    biases, out = [random((n,), seed) for seed in seeds], untouched((rows, n + 3))
    rounded = {name: fields[name] for name in ("x", "x_scale")}
    gate, above = (
        exact_outputs(packed, rounded) + bias for packed, bias in zip(pair, biases, strict=True)
    )
    expected = OPS["gate"].define(gate, above, activation=params["activation"])

    def check() -> None:
        assert_near(out[:, :n], expected, BOUND)
        assert (out[:, n:] == UNTOUCHED).all()

    fields = tile_fields(fields, params.get("block", 0), is_packed=True)
    fields |= {"up_codes": up.codes, "up_scales": up.scales, "up_bias": biases[1]}
    fields |= {"bias": biases[0], "accumulate": 0, "out": out, "out_stride": n + 3, "n": n}
    fields["strip"] = STRIP // matrices  # panels of each matrix
    return Call(params, fields, rows, check, -(-fields["panels"] // STEP))


GATED_SHAPE = (70, 320, 33)
TWO: dict[str, Any] = {"activation": "silu", "matrices": 2}
ALONE: dict[str, Any] = {"activation": "relu", "matrices": 1}  # a network without a gate


@cases_of("amx_gated_row", isa=UNITS)
def amx_gated_row(isa: str) -> Call:
    n, k, rows = GATED_SHAPE
    pair = [packed_weight(("ternary", 32), size, k, row_scale=True) for size in (n, n + 1)]
    pair[1] = slab(pair[1], slice(1, None))
    gate, up = (to_stream(packed, LANES, row_scale=True) for packed in pair)
    rounded = rounded_row(random((rows, k)), gate.padded_k)
    params = {"bits": gate.bits, "lanes": gate.lanes, **TWO} | constants(isa, True)
    return gated_call(stream_fields(gate, STEP) | rounded, up, params, pair)


@cases_of("amx_gated_block", isa=UNITS, form=[("int4", 32), ("int4+", 32), ("int4~", 32)])
def amx_gated_block(isa: str, form: tuple[str, int]) -> Call:
    n, k, rows = GATED_SHAPE
    pair = [packed_weight(form, size, k, row_scale=False) for size in (n, n + 1)]
    pair[1] = slab(pair[1], slice(1, None))
    gate, up = (in_blocks(packed, LANES) for packed in pair)
    rounded = rounded_block(random((rows, k)), gate.padded_k, gate.block)
    params = block_params(gate, gate.block) | TWO | constants(isa, True)
    return gated_call(stream_fields(gate, STEP) | rounded, up, params, pair)


@cases_of("amx_gated_row", isa=UNITS)
def amx_row_alone(isa: str) -> Call:
    n, k, rows = GATED_SHAPE
    packed = packed_weight(("ternary", 32), n, k, row_scale=True)
    weight = to_stream(packed, LANES, row_scale=True)
    rounded = rounded_row(random((rows, k)), weight.padded_k)
    params = {"bits": weight.bits, "lanes": weight.lanes, **ALONE} | constants(isa, True)
    return gated_call(stream_fields(weight, STEP) | rounded, weight, params, [packed, packed])


@cases_of("amx_gated_block", isa=UNITS)
def amx_block_alone(isa: str) -> Call:
    n, k, rows = GATED_SHAPE
    packed = packed_weight(("int4", 32), n, k, row_scale=False)
    weight = in_blocks(packed, LANES)
    rounded = rounded_block(random((rows, k)), weight.padded_k, weight.block)
    params = block_params(weight, weight.block) | ALONE | constants(isa, True)
    return gated_call(stream_fields(weight, STEP) | rounded, weight, params, [packed, packed])


@cases_of("pack_row", rows=[LEAST - 1, LEAST, 33], order=[register_order(0), vector_order(6)])
def pack_row(rows: int, order: TileOrder) -> Call:
    k, gap = 192, 64
    x = np.random.default_rng(0).integers(-127, 128, (rows, k + gap), np.int8)
    expected = in_tile_order(x[:, :k], order).ravel()
    packed = np.full(len(expected), UNTOUCHED, np.int8)

    def check() -> None:
        assert (packed == (expected if rows >= LEAST else UNTOUCHED)).all()

    fields = {"x": x, "x_stride": k + gap, "k": k, "packed": packed, "least": LEAST}
    return Call(order.constants, fields, rows, check, -(-rows // order.tokens))


@cases_of("pack_block", rows=[LEAST - 1, 33], block=[32, 128])
def pack_block(rows: int, block: int) -> Call:
    k, blocks, order = 256, 256 // block, register_order(block)
    rng = np.random.default_rng(0)
    x = rng.integers(-127, 128, (rows, k), np.int8)
    numbers = {"x_scale": random((rows, blocks)), "x_sum": rng.integers(-9, 9, (rows, blocks))}
    numbers["x_sum"] = numbers["x_sum"].astype(np.int32)
    expected = [in_tile_order(x, order), *(turned(each, TOKENS) for each in numbers.values())]
    outputs = [untouched(each.shape, each.dtype) for each in expected]

    def check() -> None:
        for each, right in zip(outputs, expected, strict=True):
            assert (each == (right if rows >= LEAST else UNTOUCHED)).all()

    fields = {"x": x, "x_stride": k, "k": k, "blocks": blocks, "least": LEAST, **numbers}
    fields |= dict(zip(("packed", "scale", "sum"), outputs, strict=True))
    return Call(order.constants, fields, rows, check, -(-rows // TOKENS))
