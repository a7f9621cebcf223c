"""A row has the same bits whichever kernel computes it, alone or among others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from edgerun.backends.cpu.emit.linear import MAX_BLOCK
from edgerun.formats import dense
from edgerun.formats.base import PackedWeight, pack_zero_points
from edgerun.kernels.lang.isa import isa_of
from edgerun.kernels.layouts.stream import to_stream
from edgerun.kernels.run.program import ThreadTeam
from edgerun.ops import linear
from edgerun_export.quantize.blocks import slab
from tests.conformance.kernels.cases.linear import (
    VECTORS,
    block_params,
    packed_weight,
    rounded_block,
    stream_fields,
)
from tests.conformance.kernels.harness import F32, ISAS, Call, ordered_for, random, run
from tests.conformance.kernels.tile_order import ordered

N, K = 37, 640
WHOLE = 24  # rows that fill tiles of four, six and eight
ROWS = WHOLE + 1
STEP = 16
FORMS = [("int4", 32), ("int8", 32), ("int4", 16), ("int2", 128), ("int8", 128), ("int4", 256)]
# With zero points and with offsets of their own.
ZERO_FORMS = [("int4+", 32), ("int4^", 32), ("int2+", 16), ("int8+", 32), ("int2^", 16)]
HALF_FORMS = [("int4+~", 32), ("int8+~", 32)]  # with zero points
BEST = VECTORS[0]
VARIANTS = [
    (*vector, form)
    for vector in VECTORS
    for form in ([*FORMS, *ZERO_FORMS] if vector == BEST else [*FORMS[:2], *ZERO_FORMS[:2]])
]
# Products of two float32 fit float64, and so a sum in float64 is rounded but twice: where a
# fused operation would round once, the results differ hardly ever.
ALMOST_ALL = 0.999


def variants(forms: list[Any], others: int) -> list[Any]:
    """All forms on the best instruction set, so many on the others: compiling takes the time."""
    return [
        (isa, form) for isa, _ in VECTORS for form in (forms if isa == BEST[0] else forms[:others])
    ]


@pytest.fixture(scope="module")
def x() -> F32:
    return random((ROWS, K))


def product(
    kernel: str,
    packed: PackedWeight,
    x: F32,
    lanes: int,
    params: dict[str, Any],
    more: Mapping[str, Any] = MappingProxyType({}),
    *,
    halves: bool = False,
) -> F32:
    """``x`` times the weight by one kernel, ``[rows, N]``; ``more`` are further arguments."""
    weight = to_stream(packed, lanes, row_scale=False, halves=halves)
    out = np.zeros((len(x), N), np.float32)
    fields = stream_fields(weight, STEP) | rounded_block(x, weight.padded_k, packed.block)
    fields |= {"bias": 0, "accumulate": 0, "out": out, "out_stride": N, "n": N}
    fields |= {"tokens": 0, "least": 0, "threads": 0, **more}
    if kernel not in ("linear_block", "gated_block"):
        del fields["tokens"], fields["threads"]
    params = block_params(weight, packed.block) | params
    if kernel.startswith("gemm"):
        fields = ordered(fields, params)
    team = ThreadTeam(1)
    run(kernel, Call(params, fields, len(x), lambda: None, -(-fields["panels"] // STEP)), team)
    team.close()
    return out


def in_order(packed: PackedWeight, x: F32) -> F32:
    """Exact sums of blocks, scaled and added up in order."""
    block = packed.block
    q, scales = linear.quantize_block(np.pad(x, [(0, 0), (0, -x.shape[1] % block)]), block)
    centred = dense(replace(packed, offsets=None))
    weights = centred / np.repeat(packed.scales, block, axis=1)[:, : packed.shape[1]]
    weights = np.rint(weights).reshape(N, -1, block)
    total = np.zeros((len(x), N), np.float32)
    for index in range(packed.blocks):
        sums = q.reshape(len(x), -1, block)[:, index].astype(np.float64) @ weights[:, index].T
        factors = scales[:, index, None] * packed.scales[None, :, index]
        total = (sums * factors + total).astype(np.float32)
        if packed.offsets is not None:
            counts = q.reshape(len(x), -1, block)[:, index].sum(axis=1, dtype=np.float32)
            inputs = (counts * scales[:, index]).astype(np.float64)
            total = (np.outer(inputs, packed.offsets[index]) + total).astype(np.float32)
    return total


@pytest.mark.parametrize(("isa", "lanes", "form"), VARIANTS, ids=str)
def test_one_row_and_many_have_the_same_bits(
    isa: str, lanes: int, form: tuple[str, int], x: F32
) -> None:
    packed = packed_weight(form, N, K, row_scale=False)
    x = x[:, : packed.shape[1]]
    every = product("linear_block", packed, x, lanes, {"isa": isa})
    for row in (0, ROWS - 1):
        alone = product("linear_block", packed, x[row : row + 1], lanes, {"isa": isa})
        np.testing.assert_array_equal(alone[0], every[row])
    many = product("gemm_block", packed, x[:WHOLE], lanes, ordered_for(isa))
    np.testing.assert_array_equal(many, every[:WHOLE])


@pytest.mark.parametrize("isa", [isa for isa, _ in VECTORS])
def test_a_batch_of_any_height_has_the_bits_of_its_rows(isa: str, x: F32) -> None:
    """Turns take one row to four, and three alone are one that is not full."""
    packed = packed_weight(FORMS[0], N, K, row_scale=False)
    lanes = isa_of(isa).vector_bytes
    every = product("linear_block", packed, x[:1], lanes, {"isa": isa})
    for height in range(2, 12):
        output = product("linear_block", packed, x[:height], lanes, {"isa": isa})
        np.testing.assert_array_equal(output[: len(every)], every)
        every = output


@pytest.mark.parametrize("rows", [1, 2, 3, 7, WHOLE])
@pytest.mark.parametrize(
    ("isa", "form"),
    [*variants(FORMS[:3], others=1), *variants(ZERO_FORMS[:2], others=1)],
    ids=str,
)
def test_gate_and_up_side_by_side_have_the_bits_of_three_kernels(
    isa: str, form: tuple[str, int], rows: int, x: F32
) -> None:
    lanes = isa_of(isa).vector_bytes
    weights = [packed_weight(form, n, K, row_scale=False) for n in (N, N + 1)]
    weights[1] = slab(weights[1], slice(1, None))
    gate, up = (product("linear_block", each, x[:rows], lanes, {"isa": isa}) for each in weights)
    team, expected = ThreadTeam(1), np.zeros_like(gate)
    fields: dict[str, Any] = {"gate": gate, "up": up, "out": expected, "width": N, "pieces": 1}
    fields |= {name: N for name in ("gate_stride", "up_stride", "out_stride")}
    params = {"activation": "silu", "lanes": lanes // 4}
    run("gate", Call(params, fields, rows, lambda: None), team)
    team.close()
    side = to_stream(weights[1], lanes, row_scale=False)
    more = {"up_codes": side.codes, "up_scales": side.scales, "up_bias": 0}
    params = {"isa": isa, "activation": "silu", "matrices": 2}
    together = product("gated_block", weights[0], x[:rows], lanes, params, more)
    np.testing.assert_array_equal(together, expected)
    if rows == WHOLE:
        params |= ordered_for(isa)
        many = product("gemm_gated_block", weights[0], x[:rows], lanes, params, more)
        np.testing.assert_array_equal(many, expected)


@pytest.mark.parametrize(
    ("isa", "form"),
    [("amx_model", form) for form in [*FORMS[:3], *ZERO_FORMS[:3], HALF_FORMS[0]]]
    + [("amx", form) for form in [*FORMS[:4], *ZERO_FORMS, *HALF_FORMS] if "amx" in ISAS],
    ids=str,
)
def test_tiles_have_the_bits_of_one_row(isa: str, form: tuple[str, int], x: F32) -> None:
    packed = packed_weight(form, N, K, row_scale=False)
    model = isa == "amx_model"
    every = product("linear_block", packed, x, 64, {"isa": "vnni_model" if model else isa})
    blocks = K // packed.block
    memory = {"areas": np.zeros((1, 1 << 17), np.uint8), "area_bytes": 1 << 17, "strip": 4}
    memory |= {"taken": np.zeros((1, 8), np.int64), "slots": 1, "blocks": blocks}
    params, halves = {"isa": isa, "tokens": -1, "packed": 0}, form[0].endswith("~")
    tiles = product("amx_block", packed, x, 64, params, memory, halves=halves)
    np.testing.assert_array_equal(tiles, every)


@pytest.mark.parametrize(("isa", "name"), variants(["int4", "int2", "int8"], others=1))
def test_a_zero_point_in_the_middle_changes_no_bit(isa: str, name: str, x: F32) -> None:
    lanes, packed = isa_of(isa).vector_bytes, packed_weight((name, 32), N, K, row_scale=False)
    points = np.full((N, K // 32), 1 << (packed.bits - 1), np.uint8)
    stored = replace(packed, zeros=pack_zero_points(points, packed.bits))
    params = {"isa": isa}
    np.testing.assert_array_equal(
        product("linear_block", stored, x, lanes, params),
        product("linear_block", packed, x, lanes, params),
    )


@pytest.mark.parametrize("has_points", [True, False])
@pytest.mark.parametrize("isa", [isa for isa, _ in VECTORS])
def test_the_largest_sums_of_blocks_meet_the_farthest_zero_points(
    isa: str, has_points: bool
) -> None:
    """Zero points are multiplied with sums of 16 bits, which the longest blocks all but fill.

    Without any, totals all but fill the 23 bits that a subtraction converts.
    """
    x = np.ones((4, MAX_BLOCK), np.float32) * np.array([1, -1, 1, -1], np.float32)[:, None]
    codes = np.zeros((N, 1, MAX_BLOCK), np.uint8)
    points = np.full((N, 1), 255, np.uint8)
    codes[::2], points[::2] = 255, 0
    scales = np.ones((N, 1), np.float32)
    given = points if has_points else None
    packed = PackedWeight("int8", (N, MAX_BLOCK), MAX_BLOCK, codes, scales, given)
    expected = in_order(packed, x)
    for kernel, params in (("linear_block", {"isa": isa}), ("gemm_block", ordered_for(isa))):
        output = product(kernel, packed, x, isa_of(isa).vector_bytes, params)
        np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize(("isa", "form"), variants(["int8+", "int8+~"], others=1))
def test_a_piece_may_begin_in_the_middle_of_a_dword_of_zero_points(isa: str, form: str) -> None:
    """As pieces of 512 weights do where a dword has zero points of four blocks of 256."""
    packed = packed_weight((form, 256), N, 1024, row_scale=False)
    x, lanes, halves = random((WHOLE, 1024)), isa_of(isa).vector_bytes, form.endswith("~")
    np.testing.assert_array_equal(
        product("gemm_block", packed, x, lanes, ordered_for(isa), halves=halves),
        product("linear_block", packed, x, lanes, {"isa": isa}),
    )


@pytest.mark.parametrize(
    ("isa", "form"), variants([("int4+~", 32), ("int4~", 32)], others=1), ids=str
)
def test_scales_in_half_precision_change_no_bit(isa: str, form: tuple[str, int], x: F32) -> None:
    lanes, packed = isa_of(isa).vector_bytes, packed_weight(form, N, K, row_scale=False)
    for kernel, params in (("linear_block", {"isa": isa}), ("gemm_block", ordered_for(isa))):
        np.testing.assert_array_equal(
            product(kernel, packed, x[:WHOLE], lanes, params, halves=True),
            product(kernel, packed, x[:WHOLE], lanes, params),
        )


@pytest.mark.parametrize("form", [*FORMS, *ZERO_FORMS], ids=str)
def test_blocks_are_added_up_in_order(form: tuple[str, int], x: F32) -> None:
    packed = packed_weight(form, N, K, row_scale=False)
    x = np.pad(x, [(0, 0), (0, packed.shape[1] - K)])
    isa, lanes = BEST
    output = product("linear_block", packed, x, lanes, {"isa": isa})
    if isa == "portable":
        pytest.skip("without fused operations every product is rounded too")
    assert (output == in_order(packed, x)).mean() >= ALMOST_ALL
