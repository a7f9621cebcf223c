"""Formats whose blocks have zero points of their own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.errors import UnsupportedError
from edgerun.formats.base import zero_points
from edgerun_export.quantize import block_layout, encode_integers, fits, quantise_rows
from edgerun_export.quantize.hessian import Hessian
from edgerun_export.quantize.method import Inputs

METHODS = ["rtn", "mse", "gptq", "descent", "gptaq", "residual"]
INT8, INT4, INT2 = (block_layout(f"int{bits}_asym") for bits in (8, 4, 2))


def rows(shift=0.0, shape=(16, 64)):
    normal = np.random.default_rng(0).standard_normal(shape) + shift
    return normal.astype(np.float32)


def inputs(columns=64):
    x = np.random.default_rng(1).standard_normal((300, columns))
    x[:, 1:] += x[:, :-1]
    hessian = x.T @ x / len(x)
    return Inputs(np.diag(hessian).copy(), Hessian(hessian))


def output_error(weights, packed):
    difference = block_layout(packed.format).unpack(packed) - weights
    return float(np.einsum("nk,kl,nl->", difference, inputs().hessian.whole(), difference))


@pytest.mark.parametrize(
    ("method", "name"), [*((method, "int4") for method in METHODS), ("mse", "int8")]
)
def test_weights_far_from_zero_lose_less_than_half(method, name):
    weights = rows(shift=2.5)
    plain, own = (
        quantise_rows(weights, kind, 32, method, inputs()) for kind in (name, f"{name}_asym")
    )
    assert own.format == plain.format == name
    assert output_error(weights, own) < 0.5 * output_error(weights, plain)


@pytest.mark.parametrize("method", ["mse", "gptq", "descent", "residual"])
@pytest.mark.parametrize("name", ["int8", "int4", "int2"])
def test_weights_around_zero_lose_no_more(method, name):
    weights = rows()
    plain, own = (
        output_error(weights, quantise_rows(weights, kind, 32, method, inputs()))
        for kind in (name, f"{name}_asym")
    )
    assert own <= 1.05 * plain


@pytest.mark.parametrize("name", ["int4", "int2"])
def test_the_search_comes_near_the_best_of_all_grids(name):
    layout, weights = block_layout(f"{name}_asym"), rows(shift=0.7, shape=(40, 32))
    losses = []
    reach = np.abs(weights).max(axis=1, keepdims=True)
    for ratio in np.linspace(0.02, 2, 100, dtype=np.float32):
        for point in range(1 << layout.bits):
            points = np.full((len(weights), 1), point, np.uint8)
            packed = layout.encode(weights, reach * ratio, 32, points)
            losses.append(np.square(layout.unpack(packed) - weights).sum(axis=1))
    best = float(np.min(losses, axis=0).sum())
    unpacked = layout.unpack(quantise_rows(weights, f"{name}_asym", 32))
    assert float(np.square(unpacked - weights).sum()) < 1.05 * best


@given(st.integers(0, 2**32 - 1), st.sampled_from([INT8, INT4, INT2]))
@settings(deadline=None, max_examples=40)
def test_integers_are_kept_wherever_a_block_spans_no_more_than_the_codes(seed, layout):
    draw, most = np.random.default_rng(seed), (1 << layout.bits) - 1
    points = draw.integers(0, most + 1, (3, 2))
    codes = draw.integers(0, most + 1, (3, 64))
    values = (codes - np.repeat(points, 32, axis=1)).astype(np.int16)
    scales = draw.uniform(0.1, 1, (3, 2)).astype(np.float32)
    assert fits(values, scales, layout, 32)
    packed = encode_integers(values, scales, layout, 32)
    expected = values * np.repeat(scales, 32, axis=1)
    np.testing.assert_array_equal(layout.unpack(packed), expected)
    values[1, 3], values[1, 4] = most, -1
    assert not fits(values, scales, layout, 32)


def test_zero_points_are_the_middle_wherever_that_does():
    values = np.tile(np.arange(-8, 8, dtype=np.int8), (1, 4))
    packed = encode_integers(values, np.ones((1, 2), np.float32), INT4, 32)
    np.testing.assert_array_equal(zero_points(packed), [[8, 8]])


def test_rows_that_are_no_whole_blocks_are_filled_up():
    weights = rows(shift=2.5, shape=(5, 72))
    packed = quantise_rows(weights, "int4_asym", 32)
    assert packed.zeros is not None and packed.zeros.shape == (5, 2)
    assert np.abs(INT4.unpack(packed) - weights).max() < 0.5


def test_a_method_that_makes_none_says_so():
    with pytest.raises(UnsupportedError, match="the method ternary makes ternary"):
        quantise_rows(rows(), "int4_asym", 32, "ternary")
