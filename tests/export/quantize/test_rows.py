import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edgerun.errors import UnsupportedError
from edgerun_export.quantize import block_layout, encode_integers, quantise_rows

FORMATS = ["ternary", "int2", "int4", "int8"]
WEIGHTS = st.floats(-100, 100, width=32)


def rows(seed=0, shape=(8, 100)):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def error(weights, name, block):
    unpacked = block_layout(name).unpack(quantise_rows(weights, name, block))
    return float(np.square(unpacked - weights).sum())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("block", [16, 32, 128])
def test_shapes_are_those_of_matmulnbits(name, block):
    packed = quantise_rows(rows(), name, block)
    blocks = -(-100 // block)
    assert packed.shape == (8, 100)
    assert packed.codes.shape == (8, blocks, block * block_layout(name).bits // 8)
    assert packed.scales.shape == (8, blocks)


@given(arrays(np.float32, (3, 32), elements=WEIGHTS), st.sampled_from(FORMATS))
@settings(deadline=None)
def test_no_weights_are_rounded_worse_than_to_zero(weights, name):
    assert error(weights, name, 16) <= float(np.square(weights).sum()) * (1 + 1e-5) + 1e-6


@given(arrays(np.float32, (2, 32), elements=WEIGHTS))
@settings(deadline=None)
def test_eight_bits_lose_less_than_a_step(weights):
    packed = quantise_rows(weights, "int8", 16)
    unpacked = block_layout("int8").unpack(packed)
    steps = np.abs(weights.reshape(2, 2, 16)).max(axis=-1) / 127
    assert (np.abs(unpacked - weights).reshape(2, 2, 16) <= steps[..., None] * 1.01 + 1e-7).all()


@pytest.mark.parametrize("name", ["int2", "int4"])
def test_searched_scales_beat_plain_rounding(name):
    weights = rows()[:, :96]
    layout = block_layout(name)
    plain = layout.unpack(layout.pack(np.ascontiguousarray(weights), 32))
    assert error(weights, name, 32) < 0.9 * float(np.square(plain - weights).sum())


@pytest.mark.parametrize("exponent", [-80, 64, 127])
@pytest.mark.parametrize("method", ["mse", "rtn"])
@pytest.mark.parametrize("name", [*FORMATS, "int2_asym", "int4_asym", "int8_asym"])
def test_weights_far_from_one_are_rounded_as_those_near_it(name, method, exponent):
    weights = np.clip(rows(shape=(4, 64)), -0.999, 0.999)
    weights[0, :2] = -0.999, 0.999  # with the largest exponent, a range that no number holds
    near = quantise_rows(weights, name, 32, method)
    far = quantise_rows(np.ldexp(weights, exponent + 1), name, 32, method)
    np.testing.assert_array_equal(far.codes, near.codes)
    np.testing.assert_array_equal(far.scales, np.ldexp(near.scales, exponent + 1))


@pytest.mark.parametrize("name", ["int2", "int4"])
def test_the_sign_of_a_scale_goes_by_what_loses_less(name):
    """A block and its negative are the same but for the sign of the scale."""
    weights = rows(shape=(64, 32))
    packed, turned = (quantise_rows(sign * weights, name, 32) for sign in (1, -1))
    assert (packed.scales < 0).any() and (packed.scales > 0).any()
    np.testing.assert_array_equal(packed.codes, turned.codes)
    np.testing.assert_array_equal(packed.scales, -turned.scales)


@pytest.mark.parametrize(("name", "less"), [("int2", 0.9), ("int4", 0.95)])
def test_scales_of_both_signs_lose_less_than_positive_ones(name, less):
    """Against the best of 41 positive scales, block by block."""
    weights, layout = rows(shape=(200, 32)), block_layout(name)
    losses = []
    for ratio in np.linspace(0.2, 1.2, 41):
        scales = np.abs(weights).max(axis=1, keepdims=True) * np.float32(ratio / layout.high)
        unpacked = layout.unpack(layout.encode(weights, scales, 32))
        losses.append(np.square(unpacked - weights).sum(axis=1))
    positive = float(np.min(losses, axis=0).sum())
    assert error(weights, name, 32) < less * less * positive


@pytest.mark.parametrize("extreme", [-1.0, 1.0])
def test_an_extreme_weight_gets_the_code_that_only_one_sign_has(extreme):
    weights = np.float32(extreme) * np.linspace(-6 / 8, 1, 15, dtype=np.float32)
    packed = quantise_rows(np.append(weights, np.float32(0))[None], "int4", 16)
    assert block_layout("int4").integers(packed).min() == -8
    assert np.sign(packed.scales[0, 0]) == -extreme
    assert error(np.append(weights, np.float32(0))[None], "int4", 16) < 1e-10


def test_fewer_bits_lose_more():
    losses = [error(rows(), name, 32) for name in ("int8", "int4", "int2")]
    assert losses == sorted(losses)


def test_ternary_fit_is_the_least_squares_optimum():
    weights = rows(shape=(1, 16))
    loss = error(weights, "ternary", 16)
    thresholds = np.concatenate([[0], np.sort(np.abs(weights[0]))])
    best = np.inf
    for threshold in thresholds[:-1]:
        signs = np.sign(weights[0]) * (np.abs(weights[0]) > threshold)
        scale = (weights[0] @ signs) / (signs @ signs)
        best = min(best, float(np.square(weights[0] - scale * signs).sum()))
    assert loss == pytest.approx(best, rel=1e-5)


@given(
    arrays(np.int8, (4, 40), elements=st.integers(-1, 1)),
    st.floats(0.0625, 8, width=32) | st.floats(-8, -0.0625, width=32),
)
@settings(deadline=None)
def test_exact_ternary_values_survive(values, scale):
    scales = np.full((4, 1), scale, np.float32)
    packed = encode_integers(values, scales, block_layout("ternary"), 32)
    expected = values.astype(np.float32) * np.float32(scale)
    np.testing.assert_array_equal(block_layout("ternary").unpack(packed), expected)


def test_stored_block_scales_are_spread_over_smaller_groups():
    values = np.ones((2, 512), np.int8)
    scales = np.array([[1, 2], [3, 4]], np.float32)
    packed = encode_integers(values, scales, block_layout("ternary"), 128)
    np.testing.assert_array_equal(packed.scales[0], [1, 1, 2, 2])
    with pytest.raises(UnsupportedError, match="must divide 128, not be 256"):
        encode_integers(values[:, :256], scales, block_layout("ternary"), 256)


def test_zero_rows_stay_zero():
    for name in FORMATS:
        assert error(np.zeros((2, 32), np.float32), name, 16) == 0
