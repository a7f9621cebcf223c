"""Cases of the matrix products: those of the linear kernels, and many batch rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.formats import dense
from edgerun.formats.base import PackedWeight
from edgerun.kernels.lang.isa import isa_of
from edgerun.kernels.layouts.stream import to_stream
from edgerun.kernels.layouts.tile_order import vector_order
from edgerun.kernels.linear import gemm
from tests.conformance.kernels.cases.linear import (
    BLOCK_FORMS,
    BOUND,
    HALF_FORMS,
    ROW_FORMS,
    SHAPES,
    ZERO_FORMS,
    block_params,
    in_blocks,
    packed_weight,
    rounded_block,
    rounded_row,
    stream_fields,
    variants,
)
from tests.conformance.kernels.harness import (
    ISAS,
    UNTOUCHED,
    Call,
    assert_near,
    cases_of,
    ordered_for,
    random,
    unpacked,
    untouched,
)
from tests.conformance.kernels.tile_order import in_tile_order, ordered, turned

# More batch rows than share a piece, more of K than a piece has, rows that fill no tile.
MANY = [(131, 4480, 19, True), (2, 96, gemm.MOST_ROWS + 5, False)]
STEP = 5  # panels of a chunk
LEAST = 5  # rows of a batch
BLOCKS = variants(BLOCK_FORMS) + variants(ZERO_FORMS) + variants(HALF_FORMS)
Variant = tuple[str, int, tuple[str, int]]


def exact_outputs(packed: PackedWeight, rounded: dict[str, Any]) -> NDArray[np.float64]:
    """The product in float64, from the integers that the kernel sees."""
    weight = dense(packed).astype(np.float64)
    x, scales = rounded["x"].astype(np.float64), rounded["x_scale"].reshape(len(rounded["x"]), -1)
    x *= np.repeat(scales, x.shape[1] // scales.shape[1], axis=1)
    product: NDArray[np.float64] = x[:, : weight.shape[1]] @ weight.T
    return product


def call_of(
    packed: PackedWeight,
    fields: dict[str, Any],
    params: dict[str, Any],
    extras: bool,
    rounded: dict[str, Any],
) -> Call:
    """A call with its check against float64."""
    rows, n, tokens = len(rounded["x"]), packed.shape[0], params["tokens"]
    taken = min(rows, (rows + tokens // 2) // tokens * tokens) if rows >= LEAST else 0
    bias, residual, out = random((n,), 5), random((rows, n), 6), untouched((rows, n + 3))
    out[:, :n] = residual
    expected = exact_outputs(packed, rounded)
    if extras:
        expected = expected + bias + residual

    def check() -> None:
        assert_near(out[:taken, :n], expected[:taken].astype(np.float32), BOUND)
        assert (out[taken:, :n] == residual[taken:]).all()
        assert (out[:, n:] == UNTOUCHED).all()

    fields = fields | ordered(rounded, params)
    fields |= {"bias": bias if extras else 0, "accumulate": int(extras)}
    fields |= {"out": out, "out_stride": n + 3, "n": n, "least": LEAST}
    return Call(params, fields, rows, check, -(-fields["panels"] // STEP))


@cases_of("gemm_row", variant=variants(ROW_FORMS), shape=SHAPES + MANY)
def gemm_row(variant: Variant, shape: tuple[int, int, int, bool]) -> Call:
    isa, lanes, form = variant
    n, k, rows, extras = shape
    matrix = packed_weight(form, n, k, row_scale=True)
    weight = to_stream(matrix, lanes, row_scale=True)
    params = {"bits": weight.bits, "lanes": weight.lanes, **unpacked(isa)}
    rounded = rounded_row(random((rows, matrix.shape[1])), weight.padded_k)
    return call_of(matrix, stream_fields(weight, STEP), params, extras, rounded)


@cases_of("gemm_block", variant=BLOCKS, shape=SHAPES + MANY, packed=[1])
@cases_of("gemm_block", variant=BLOCKS[:1] + variants(ZERO_FORMS)[:2], shape=MANY, packed=[0])
def gemm_block(variant: Variant, shape: tuple[int, int, int, bool], packed: int) -> Call:
    isa, lanes, form = variant
    n, k, rows, extras = shape
    matrix = packed_weight(form, n, k, row_scale=False)
    weight = in_blocks(matrix, lanes)
    params = block_params(weight, matrix.block) | ordered_for(isa, packed)
    rounded = rounded_block(random((rows, matrix.shape[1])), weight.padded_k, matrix.block)
    return call_of(matrix, stream_fields(weight, STEP), params, extras, rounded)


@cases_of("order_block", isa=[*ISAS, "vnni_model"], form=[(4, 0), (8, 1), (2, 2)])
def order_block(isa: str, form: tuple[int, int]) -> Call:
    """Rows fill no tile; sums begin with what is to be taken off, where it is a constant."""
    (bits, zeros), rows, k, blocks, gap = form, 13, 96, 3, 32
    tokens, rng = isa_of(isa).tile[1], np.random.default_rng(0)
    x = rng.integers(-127, 128, (rows, k + gap), np.int8)
    numbers = {"x_scale": random((rows, blocks)), "x_sum": rng.integers(-99, 99, (rows, blocks))}
    numbers["x_sum"] = numbers["x_sum"].astype(np.int32)
    fewer = -(1 << (bits - 1)) if zeros == 0 else 1
    bias = 0x4B400000 if isa == "avxvnni" and zeros == 0 else 0  # 1.5 * 2**23 in float32
    expected = [
        in_tile_order(x[:, :k], vector_order(tokens)),
        turned(numbers["x_scale"], tokens),
        turned((bias + fewer * numbers["x_sum"]).astype(np.int32), tokens),
    ]
    outputs = [untouched(each.shape, each.dtype) for each in expected]

    def check() -> None:
        for each, right in zip(outputs, expected, strict=True):
            whole = rows // tokens  # rows beyond the last are nobody's
            assert (each[:whole] == right[:whole]).all()
            assert (each[whole:, ..., : rows % tokens] == right[whole:, ..., : rows % tokens]).all()

    fields = {"x": x, "x_stride": k + gap, "k": k, "blocks": blocks, "least": LEAST, **numbers}
    fields |= dict(zip(("packed", "scale", "sum"), outputs, strict=True))
    params = {"bits": bits, "tokens": tokens, "isa": isa, "zeros": zeros}
    return Call(params, fields, rows, check, -(-rows // tokens))
