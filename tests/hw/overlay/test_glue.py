"""The definition of norms, gates and rounding on the fabric, held to the same in floats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgerun.activations.registry import ACTIVATIONS
from edgerun.ops.linear import quantize_row
from edgerun.ops.rms_norm import rms_norm
from edgerun_hw.overlay.glue import (
    CODE_ERROR,
    GATE_ERROR,
    GATE_ERROR_PER_UNIT,
    LARGEST_GATE,
    LOG2_E,
    MAX_LENGTH,
    SCALE_ERROR,
    Constants,
    Gate,
    gated,
    round_row,
)
from edgerun_hw.overlay.glue_layout import LANES, pack_constants, pack_results, run_glue
from edgerun_hw.overlay.glue_numbers import NO_NUMBER_WORD, Scalar, add, cut, multiply
from edgerun_hw.overlay.packing import LookupMode, pack_activations

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
UNIT = 2.0**-15  # what is cut off is less than this share
ACTIVATION_OF = {Gate.SWIGLU: "silu", Gate.RELU2: "relu2"}
normal_floats = st.floats(2.0**-60, 2.0**60, width=32)


def exact_row(gate: Gate, gain: float, x: F32, up: F32 | None, weight: F32 | None) -> F64:
    """In float64, by the functions' own formulas; epsilon is 1e-5."""
    h = gain * x.astype(np.float64)
    if up is not None and gate is Gate.RESIDUAL:
        h = x + gain * up.astype(np.float64)
    elif up is not None:
        first = np.maximum(h, 0) if gate is Gate.RELU2 else 1 / (1 + np.exp(-h))
        h = first * h * (gain * up.astype(np.float64))
    return h if weight is None else h / np.sqrt(np.mean(h * h) + 1e-5) * weight


def random_row(
    rng: np.random.Generator, gate: Gate, norm: bool, length: int
) -> tuple[float, F32, F32 | None, F32 | None]:
    gain = float(np.float32(np.exp(rng.uniform(-6, 1)))) if gate else 1.0
    x = rng.standard_normal(length).astype(np.float32) / np.float32(gain)
    if rng.random() < 0.4:
        x[rng.integers(length)] *= 12
    up = rng.standard_normal(length).astype(np.float32) if gate else None
    weight = (1 + rng.standard_normal(length)).astype(np.float32) if norm else None
    return gain, x, up, weight


@given(st.floats(width=32), st.floats(width=32))
def test_products_are_the_exact_ones_cut_off(a: float, b: float) -> None:
    left, right = (cut(np.array([value], np.float32)) for value in (a, b))
    product = multiply(left, right)
    x, y = float(left.floats()[0]), float(right.floats()[0])
    exact = x * y  # of 32 bits: exact in float64
    if not np.isfinite(exact) or abs(exact) >= 2.0**128:
        assert product.broken
    elif abs(exact) < 2.0**-126:
        assert product.floats()[0] == 0
    else:
        assert 0 <= 1 - float(product.floats()[0]) / exact < UNIT
        assert int(product.mantissas[0]) >> 15 == 1


@given(st.floats(width=32), st.floats(width=32))
@example(3.374895965877043e16, 4.244224834378138e16)  # loses at the summand and at the carry
def test_sums_lose_less_than_a_unit_of_the_largest_of_the_three(a: float, b: float) -> None:
    left, right = (cut(np.array([value], np.float32)) for value in (a, b))
    total = add(left, right)
    x, y = float(left.floats()[0]), float(right.floats()[0])
    exact = x + y
    if not np.isfinite(exact) or abs(exact) >= 2.0**128:
        assert total.broken
        assert total.words()[0] == NO_NUMBER_WORD
        return
    assert total.words()[0] == total.floats().view(np.uint32)[0]
    if abs(exact) >= 2.0**-126:
        assert abs(float(total.floats()[0]) - exact) < UNIT * max(abs(x), abs(y), abs(exact))
        assert int(total.mantissas[0]) >> 15 == 1
    else:
        assert total.floats()[0] == 0


@pytest.mark.parametrize("norm", [False, True])
def test_a_residual_sum_is_a_result_too(norm: bool) -> None:
    rng = np.random.default_rng(3)
    gain, x, up, weight = random_row(rng, Gate.RESIDUAL, norm, 21)
    assert up is not None
    constants = Constants.make(21, gain=gain, epsilon=1e-6 if norm else None)
    stream = np.concatenate([pack_constants(constants), x, np.zeros(3)]).astype(np.float32)
    rows = [np.append(row, np.zeros(3)) for row in (up, weight) if row is not None]
    result = run_glue(Gate.RESIDUAL, norm, 21, stream, np.concatenate(rows).astype(np.float32))
    sums, rest = result[: 6 * 16].view(np.float32), result[6 * 16 :]
    assert sums[:21] == pytest.approx(x + np.float32(gain) * up, rel=2**-14, abs=1e-6)
    assert not sums[21:].any()
    codes, scale = round_row(constants, Gate.RESIDUAL, x, up, weight)
    assert (rest == pack_results(codes, scale)).all()


@given(normal_floats, normal_floats)
def test_scalars_lose_less_than_a_unit(a: float, b: float) -> None:
    x, y = Scalar.of(a), Scalar.of(b)
    left, right = float(x.float32()), float(y.float32())
    pairs = [
        (x * y, left * right),
        (x / y, left / right),
        (x + y, left + right),
        (x.square_root(), left**0.5),
    ]
    for result, exact in pairs:
        assert 0 <= 1 - float(result.float32()) / exact < 2 * UNIT
        assert result.mantissa >> 15 == 1


def test_scalars_have_zeros_and_ends() -> None:
    zero, unit = Scalar.of(0.0), Scalar.of(1.0)
    assert (zero + unit, unit + zero) == (unit, unit)
    assert (zero * unit).float32() == (zero / zero).float32() == zero.square_root().float32() == 0
    large = Scalar.of(2.0**127)
    assert np.isnan((large * large).float32())
    assert (unit / large / large).float32() == 0
    assert float((large * large).square_root().float32()) == 2.0**127


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from(Gate), st.booleans(), st.integers(1, 700))
@example(336864, Gate.SWIGLU, False, 1)  # its only gate is below the least that there is
def test_rows_are_within_the_stated_error(seed: int, gate: Gate, norm: bool, length: int) -> None:
    gain, x, up, weight = random_row(np.random.default_rng(seed), gate, norm, length)
    constants = Constants.make(length, gain=gain, epsilon=1e-5 if norm else None)
    codes, scale = round_row(constants, gate, x, up, weight)
    exact = exact_row(gate, gain, x, up, weight)
    if gate is Gate.SWIGLU:
        beyond = -LARGEST_GATE - gain * x.astype(np.float64)
        assume(not (np.abs(beyond) < 0.01).any())  # the end is rounded, too
        exact[beyond > 0] = 0
    largest = np.abs(exact).max()
    if largest == 0:
        assert scale == 0
        return
    of_gate = np.zeros(length)
    if gate is Gate.SWIGLU:
        of_gate = GATE_ERROR + GATE_ERROR_PER_UNIT * np.abs(gain * x.astype(np.float64))
    at_largest = of_gate[np.abs(exact).argmax()]
    # A norm's sum of squares is off by as much as its largest elements.
    assert abs(scale * 127 / largest - 1) <= SCALE_ERROR + 2 * of_gate.max()
    steps = exact * 127 / largest
    bound = 0.5 + CODE_ERROR + np.abs(steps) * (of_gate + at_largest)
    assert (np.abs(codes - steps) <= bound).all()


@pytest.mark.parametrize("gate", Gate)
def test_rows_are_nearly_those_of_the_float32_ops(gate: Gate) -> None:
    """By far most codes are those of the CPU's definitions; none differs by more than one."""
    rng = np.random.default_rng(8)
    gain, x, up, _ = random_row(rng, gate, True, 2000)
    weight = (1 + 0.1 * rng.standard_normal(2000)).astype(np.float32)
    h = (x * np.float32(gain))[None]
    if up is not None and gate is Gate.RESIDUAL:
        h = x[None] + up[None] * np.float32(gain)
    elif up is not None:
        h = ACTIVATIONS[ACTIVATION_OF[gate]].product(h, up[None] * np.float32(gain))
    expected, scales = quantize_row(rms_norm(h, weight, epsilon=1e-5))
    codes, scale = round_row(Constants.make(2000, gain=gain, epsilon=1e-5), gate, x, up, weight)
    difference = np.abs(codes.astype(int) - expected[0])
    assert difference.max() <= 1
    assert np.mean(difference) < 0.02
    assert scale == pytest.approx(scales[0], rel=2 * SCALE_ERROR)


def test_the_sigmoid_everywhere() -> None:
    x = np.linspace(-LARGEST_GATE, 40, 200_001).astype(np.float32)
    got = gated(Gate.SWIGLU, cut(x), np.ones_like(x), Scalar.of(LOG2_E)).floats()
    exact = x / (1 + np.exp(-x.astype(np.float64)))
    error = np.abs(got - exact) - (GATE_ERROR + GATE_ERROR_PER_UNIT * np.abs(x)) * np.abs(exact)
    assert (error <= 0).all()
    beyond = np.array([-23, -1e4, -3e38, 3e38], np.float32)
    got = gated(Gate.SWIGLU, cut(beyond), np.ones_like(beyond), Scalar.of(LOG2_E)).floats()
    assert (got[:3] == 0).all()
    assert got[3] == pytest.approx(3e38, rel=GATE_ERROR)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(-40, 40))
def test_codes_do_not_depend_on_a_rows_size(seed: int, power: int) -> None:
    x = np.random.default_rng(seed).standard_normal(50).astype(np.float32)
    plain, scaled = (
        round_row(Constants.make(50), Gate.NONE, x * np.float32(size)) for size in (1, 2.0**power)
    )
    assert (plain[0] == scaled[0]).all()
    assert float(scaled[1]) == float(plain[1]) * 2.0**power
    assert abs(plain[0].astype(int)).max() == 127


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("gate", Gate)
def test_what_is_no_number_makes_the_scale_none(gate: Gate, bad: float) -> None:
    rng = np.random.default_rng(1)
    gain, x, up, weight = random_row(rng, gate, True, 40)
    constants = Constants.make(40, gain=gain, epsilon=1e-6)
    for row in (x, up, weight):
        if row is not None:
            before, row[7] = row[7], bad
            codes, scale = round_row(constants, gate, x, up, weight)
            assert np.isnan(scale)
            assert not codes.any()
            row[7] = before
    codes, scale = round_row(Constants.make(40, gain=bad), gate, x, up, weight)
    assert np.isnan(scale)
    # Beyond float32 with what it is multiplied by, or with a norm's weight.
    gated_row = gate not in (Gate.NONE, Gate.RESIDUAL)
    x[7] = 1e30 * (1 if gated_row else 1e8)
    rows = (np.full_like(x, 3e20), weight) if gated_row else (up, np.full_like(x, 1e8))
    assert np.isnan(round_row(constants, gate, x, *rows)[1])


def test_rows_of_zeros_have_the_scale_zero() -> None:
    for epsilon in (None, 1e-6, 0.0):
        constants = Constants.make(9, epsilon=epsilon)
        weight = None if epsilon is None else np.ones(9, np.float32)
        codes, scale = round_row(constants, Gate.NONE, np.zeros(9, np.float32), None, weight)
        assert scale == 0
        assert not codes.any()


@pytest.mark.parametrize("length", [0, MAX_LENGTH + 1])
def test_rows_beyond_the_unit_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"a row of {length} elements; the unit takes 1 to 8192"):
        round_row(Constants.make(1), Gate.NONE, np.zeros(length, np.float32))


@pytest.mark.parametrize("length", [1, 4, 15, 33])
def test_streams_are_rows_and_results_an_engines_activations(length: int) -> None:
    """What fills up a last beat is ignored; the last beat is the next command's first."""
    rng = np.random.default_rng(length)
    gain, x, up, weight = random_row(rng, Gate.RELU2, True, length)
    assert up is not None and weight is not None
    constants = Constants.make(length, gain=gain, epsilon=1e-6)
    filled = [np.append(row, np.full(-length % LANES, np.nan)) for row in (x, up, weight)]
    stream = np.concatenate([pack_constants(constants), filled[0]]).astype(np.float32)
    result = run_glue(
        Gate.RELU2, True, length, stream, np.concatenate(filled[1:]).astype(np.float32)
    )
    codes, scale = round_row(constants, Gate.RELU2, x, up, weight)
    packed = pack_activations(codes[None], LookupMode.TERNARY)
    assert (result[:-16].view(np.int8) == packed.reshape(-1)).all()
    assert result[-16:].view(np.float32)[0] == scale
    constants = Constants.make(length, gain=float(scale), epsilon=1e-6)
    assert (pack_constants(constants)[:LANES] == result[-16:].view(np.float32)).all()
