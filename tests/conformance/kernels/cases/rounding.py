"""Cases of the kernels that normalise and round."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.ops import linear
from edgerun.ops.registry import OPS
from tests.conformance.kernels.harness import (
    F32,
    ISAS,
    UNTOUCHED,
    Call,
    assert_near,
    cases_of,
    float_lanes,
    random,
    untouched,
)

SHAPES = [(1, 64), (4, 100), (2, 259), (5, 67)]
EPSILON = np.array([1e-5], np.float32)


def awkward(shape: tuple[int, int]) -> F32:
    """Values with halves, then a tiny row, one of zeros, one with NaN and one infinite."""
    x = random(shape, gap=4)
    width = shape[1]
    x[0, :width] = np.round(x[0, :width] * 8) / 8
    if shape[0] > 1:
        x[1, :width] *= 1e-30
    if shape[0] > 2:
        x[2, :width] = 0
    if shape[0] > 3:
        x[3, 5] = np.nan  # among whole vectors
    if shape[0] > 4:
        x[4, width - 1] = np.inf  # behind them
    return x


def check_codes(q: NDArray[np.int8], width: int, expected: NDArray[np.int8], slack: int) -> None:
    """Codes within ``slack`` where they have a meaning, and zeros behind them."""
    difference = np.abs(q[:3, :width].astype(np.int32) - expected[:3])
    assert difference.max() <= slack
    assert (difference > 0).mean() <= 0.01
    assert (q[:, width:] == 0).all()


@cases_of("quantize_row", isa=ISAS, shape=SHAPES)
def quantize_row(isa: str, shape: tuple[int, int]) -> Call:
    rows, width = shape
    x, q = awkward(shape), untouched((rows, 320), np.int8)
    scale, total = untouched((rows,)), untouched((rows,), np.int32)

    def check() -> None:
        codes, scales = linear.quantize_row(x[:, :width])
        check_codes(q, width, codes, 0)
        np.testing.assert_array_equal(scale, scales)
        np.testing.assert_array_equal(total[:3], q.sum(axis=1, dtype=np.int32)[:3])

    fields = {"x": x, "x_stride": x.shape[1], "width": width, "q": q, "q_stride": 320}
    params = {"lanes": float_lanes(isa)}
    return Call(params, fields | {"scale": scale, "sum": total}, rows, check)


@cases_of("quantize_block", isa=ISAS, shape=SHAPES, block=[16, 64])
def quantize_block(isa: str, shape: tuple[int, int], block: int) -> Call:
    rows, width = shape
    x, q, blocks = awkward(shape), untouched((rows, 320), np.int8), 320 // block
    scale, total = untouched((rows, blocks)), untouched((rows, blocks), np.int32)

    def check() -> None:
        codes, scales = linear.quantize_block(x[:, :width], block)
        used = scales.shape[1]
        check_codes(q, width, codes, 0)
        np.testing.assert_array_equal(scale[:, :used], scales)
        sums = q.reshape(rows, blocks, block).sum(axis=2)
        np.testing.assert_array_equal(total[:3], sums[:3])
        assert (scale[:, used:] == 0).all()

    fields = {"x": x, "x_stride": x.shape[1], "width": width, "q": q, "q_stride": 320}
    params = {"block": block, "lanes": float_lanes(isa)}
    return Call(params, fields | {"scale": scale, "sum": total, "blocks": blocks}, rows, check)


@cases_of("quantize_row_blocks", isa=ISAS, shape=SHAPES, block=[32])
def quantize_row_blocks(isa: str, shape: tuple[int, int], block: int) -> Call:
    rows, width = shape
    x, q, blocks = awkward(shape), untouched((rows, 320), np.int8), 320 // block
    scale, total = untouched((rows, blocks)), untouched((rows, blocks), np.int32)

    def check() -> None:
        codes, scales = linear.quantize_row(x[:, :width])
        check_codes(q, width, codes, 0)
        np.testing.assert_array_equal(scale, np.repeat(scales[:, None], blocks, axis=1))
        sums = q.reshape(rows, blocks, block).sum(axis=2)
        np.testing.assert_array_equal(total[:3], sums[:3])

    fields = {"x": x, "x_stride": x.shape[1], "width": width, "q": q, "q_stride": 320}
    params = {"block": block, "lanes": float_lanes(isa)}
    return Call(params, fields | {"scale": scale, "sum": total, "blocks": blocks}, rows, check)


@cases_of("round_row", isa=ISAS, shape=SHAPES)
def round_row(isa: str, shape: tuple[int, int]) -> Call:
    rows, width = shape
    x, out = awkward(shape), untouched((rows, width + 2))

    def check() -> None:
        expected = linear.rounded_activations(x[:, :width], "int8_row", 0)
        np.testing.assert_array_equal(out[:, :width], expected)
        assert (out[:, width:] == UNTOUCHED).all()

    fields = {"x": x, "x_stride": x.shape[1], "width": width, "out": out, "out_stride": width + 2}
    return Call({"lanes": float_lanes(isa)}, fields, rows, check)


@cases_of("rms_norm", isa=ISAS, shape=[(1, 1, 64), (3, 4, 20), (2, 1, 2560)], own=[False, True])
def rms_norm(isa: str, shape: tuple[int, int, int], own: bool) -> Call:
    rows, groups, size = shape
    width, weights = groups * size, groups if own else 1
    x, weight = random((rows, width), gap=1), random((weights * size,), 1)
    out = untouched((rows, width + 2))

    def check() -> None:
        ones = np.ones(size, np.float32)
        expected = OPS["rms_norm"].define(x[:, :width], ones, epsilon=1e-5)
        expected = expected * np.tile(weight, groups // weights)
        assert_near(out[:, :width], expected, 1e-6)
        assert (out[:, width:] == UNTOUCHED).all()

    fields = {"x": x, "x_stride": width + 1, "weight": weight, "out": out, "groups": groups}
    fields |= {"out_stride": width + 2, "size": size, "epsilon": EPSILON, "weights": weights}
    return Call({"lanes": float_lanes(isa)}, fields, rows, check)


def normed(op: str, shape: tuple[int, int]) -> tuple[dict[str, NDArray[Any]], F32]:
    """Operands of a norm that rounds, and what it is to round."""
    x, vectors = awkward(shape), {"weight": random((shape[1],), 1)}
    attributes: dict[str, Any] = {"epsilon": 1e-5}
    if op == "layer_norm":
        vectors["bias"], attributes["groups"] = random((shape[1],), 2), 1
        x[0] += np.float32(3)
    expected = OPS[op].define(x[:, : shape[1]], **vectors, **attributes)
    return {"x": x, "epsilon": EPSILON, **vectors}, expected


def row_call(op: str, isa: str, shape: tuple[int, int]) -> Call:
    rows, width = shape
    operands, expected = normed(op, shape)
    q, scale, total = untouched((rows, 320), np.int8), untouched((rows,)), untouched((rows,), "i4")

    def check() -> None:
        codes, scales = linear.quantize_row(expected)
        check_codes(q, width, codes, 1)
        np.testing.assert_allclose(scale, scales, rtol=2e-6)
        np.testing.assert_array_equal(total[:3], q.sum(axis=1, dtype=np.int32)[:3])

    fields = {**operands, "x_stride": operands["x"].shape[1], "size": width}
    fields |= {"q": q, "q_stride": 320, "scale": scale, "sum": total}
    return Call({"lanes": float_lanes(isa)}, fields, rows, check)


def block_call(op: str, isa: str, shape: tuple[int, int], block: int) -> Call:
    rows, width = shape
    blocks = 320 // block
    operands, expected = normed(op, shape)
    q, scale, total = (
        untouched((rows, 320), np.int8),
        untouched((rows, blocks)),
        untouched((rows, blocks), np.int32),
    )

    def check() -> None:
        codes, scales = linear.quantize_block(expected, block)
        check_codes(q, width, codes, 1)
        np.testing.assert_allclose(scale[:, : scales.shape[1]], scales, rtol=2e-6, atol=1e-38)
        sums = q.reshape(rows, blocks, block).sum(axis=2)
        np.testing.assert_array_equal(total[:3], sums[:3])

    fields = {**operands, "x_stride": operands["x"].shape[1], "size": width}
    fields |= {"q": q, "q_stride": 320, "scale": scale, "sum": total, "blocks": blocks}
    return Call({"block": block, "lanes": float_lanes(isa)}, fields, rows, check)


@cases_of("rms_norm_row", isa=ISAS, shape=SHAPES)
def rms_norm_row(isa: str, shape: tuple[int, int]) -> Call:
    return row_call("rms_norm", isa, shape)


@cases_of("rms_norm_block", isa=ISAS, shape=SHAPES, block=[32])
def rms_norm_block(isa: str, shape: tuple[int, int], block: int) -> Call:
    return block_call("rms_norm", isa, shape, block)


@cases_of("layer_norm_row", isa=ISAS, shape=SHAPES)
def layer_norm_row(isa: str, shape: tuple[int, int]) -> Call:
    return row_call("layer_norm", isa, shape)


@cases_of("layer_norm_block", isa=ISAS, shape=SHAPES, block=[32])
def layer_norm_block(isa: str, shape: tuple[int, int], block: int) -> Call:
    return block_call("layer_norm", isa, shape, block)
