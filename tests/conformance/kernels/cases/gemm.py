"""Cases of the matrix products: those of the linear kernels, and many batch rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.formats import dense
from edgerun.formats.base import PackedWeight
from edgerun.kernels.layouts.stream import to_stream
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
    UNTOUCHED,
    Call,
    assert_near,
    cases_of,
    random,
    unpacked,
    untouched,
)

# More batch rows than share a piece, more of K than a piece has, rows that fill no tile.
MANY = [(131, 4480, 19, True), (2, 96, gemm.MOST_ROWS + 5, False)]
STEP = 5  # panels of a chunk
LEAST = 5  # rows of a batch
BLOCKS = variants(BLOCK_FORMS) + variants(ZERO_FORMS) + variants(HALF_FORMS)


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

    fields = fields | rounded | {"bias": bias if extras else 0, "accumulate": int(extras)}
    fields |= {"out": out, "out_stride": n + 3, "n": n, "least": LEAST}
    return Call(params, fields, rows, check, -(-fields["panels"] // STEP))


@cases_of("gemm_row", variant=variants(ROW_FORMS), shape=SHAPES + MANY)
def gemm_row(variant: tuple[str, int, tuple[str, int]], shape: tuple[int, int, int, bool]) -> Call:
    isa, lanes, form = variant
    n, k, rows, extras = shape
    packed = packed_weight(form, n, k, row_scale=True)
    weight = to_stream(packed, lanes, row_scale=True)
    params = {"bits": weight.bits, "lanes": weight.lanes, **unpacked(isa)}
    rounded = rounded_row(random((rows, packed.shape[1])), weight.padded_k)
    return call_of(packed, stream_fields(weight, STEP), params, extras, rounded)


@cases_of("gemm_block", variant=BLOCKS, shape=SHAPES + MANY)
def gemm_block(
    variant: tuple[str, int, tuple[str, int]], shape: tuple[int, int, int, bool]
) -> Call:
    isa, lanes, form = variant
    n, k, rows, extras = shape
    packed = packed_weight(form, n, k, row_scale=False)
    weight = in_blocks(packed, lanes)
    params = block_params(weight, packed.block) | unpacked(isa)
    rounded = rounded_block(random((rows, packed.shape[1])), weight.padded_k, packed.block)
    return call_of(packed, stream_fields(weight, STEP), params, extras, rounded)
