"""Methods that know how inputs hang together, against direct computations."""

import numpy as np
import pytest

from edgerun_export.calibrate.moments import Moments, Tokens
from edgerun_export.quantize import block_layout, quantise_rows
from edgerun_export.quantize.columns import (
    corrected,
    descended,
    refitted,
    rounded_in_turn,
    weights,
)
from edgerun_export.quantize.hessian import Hessian
from edgerun_export.quantize.method import Inputs, Needs
from edgerun_export.quantize.mse import searched_scales

FORMATS = ["ternary", "int2", "int4", "int8"]
ROWS, COLUMNS, BLOCK = 8, 32, 16


def problem(seed=0, columns=COLUMNS, tokens=200):
    """Weights, and inputs that hang together."""
    random = np.random.default_rng(seed)
    mixed = random.standard_normal((tokens, columns)) @ random.standard_normal((columns, columns))
    mixed *= random.uniform(0.2, 3, columns)
    rows = random.standard_normal((ROWS, columns)).astype(np.float32)
    return rows, mixed


def products(x):
    return x.T @ x / len(x)


def inputs(x, source=None, residual=None):
    count = len(x)
    drift = None if source is None else (source - x).T @ x / count
    strayed = None if residual is None else residual.T @ x / count
    return Inputs((x * x).mean(axis=0), Hessian(products(x)), drift, strayed)


def hessian_of(x):
    """As methods have it, and as a matrix."""
    return Hessian(products(x)), Hessian(products(x)).whole()


def loss(rows, packed, hessian):
    error = block_layout(packed.format).unpack(packed) - rows
    return float(np.einsum("nk,kl,nl->", error, hessian, error))


def one_by_one(target, hessian, scales, layout, block):
    """OBQ's update with an inverse of what is left after every column; O(K^4) in all."""
    left = list(np.argsort(-np.diag(hessian), kind="stable"))
    now, codes = target.copy(), np.zeros_like(target)
    while left:
        inverse = np.linalg.inv(hessian[np.ix_(left, left)])
        column, others = left[0], left[1:]
        scale = scales[:, column // block]
        codes[:, column] = np.clip(np.rint(now[:, column] / scale), layout.low, layout.high)
        error = (now[:, column] - codes[:, column] * scale) / inverse[0, 0]
        now[:, others] -= error[:, None] * inverse[0, 1:]
        left = others
    return codes


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("seed", range(3))
def test_gptq_finds_the_codes_of_the_direct_computation(name, seed):
    rows, x = problem(seed)
    layout, (hessian, matrix) = block_layout(name), hessian_of(x)
    target = weights(rows, BLOCK)
    scales = searched_scales(target, layout, BLOCK)
    expected = one_by_one(target, matrix, scales, layout, BLOCK)
    np.testing.assert_array_equal(rounded_in_turn(target, hessian, scales, layout), expected)


def test_columns_behind_the_first_panel_are_made_up_for_as_well():
    rows, x = problem(columns=80, tokens=400)
    layout, (hessian, matrix) = block_layout("int4"), hessian_of(x)
    target = weights(rows, 32)
    scales = searched_scales(target, layout, 32)
    codes = rounded_in_turn(target, hessian, scales, layout)
    expected = one_by_one(target[:, :80], matrix, scales, layout, 32)
    np.testing.assert_array_equal(codes[:, :80], expected)
    assert not codes[:, 80:].any()


@pytest.mark.parametrize("name", ["ternary", "int2", "int4"])
def test_each_method_loses_less_than_the_one_before(name):
    rows, x = problem(columns=100)
    seen = inputs(x)
    losses = [
        loss(rows, quantise_rows(rows, name, BLOCK, method, seen), products(x))
        for method in ("rtn", "mse", "gptq", "descent")
    ]
    assert losses == sorted(losses, reverse=True)
    assert losses[3] < 0.95 * losses[2] < 0.7 * losses[1]


def test_no_sweep_makes_the_error_larger_and_none_after_the_last_changes_anything():
    rows, x = problem()
    layout, (hessian, matrix) = block_layout("int2"), hessian_of(x)
    target = weights(rows, BLOCK)
    scales = searched_scales(target, layout, BLOCK)
    codes = np.zeros_like(target)
    errors = []
    for _ in range(12):
        codes = descended(codes, target, hessian, scales, layout, 1)
        difference = codes * np.repeat(scales, BLOCK, axis=1) - target
        errors.append(np.einsum("nk,kl,nl->", difference, matrix, difference))
    assert errors == sorted(errors, reverse=True)
    np.testing.assert_array_equal(descended(codes, target, hessian, scales, layout, 9), codes)
    for column in range(COLUMNS):  # no other code alone is better
        for code in range(layout.low, layout.high + 1):
            other = codes.copy()
            other[:, column] = code
            difference = other * np.repeat(scales, BLOCK, axis=1) - target
            each = np.einsum("nk,kl,nl->n", difference, matrix, difference)
            best = codes * np.repeat(scales, BLOCK, axis=1) - target
            assert (each >= np.einsum("nk,kl,nl->n", best, matrix, best) * (1 - 1e-9)).all()


def test_refitted_scales_are_the_least_squares_solution():
    rows, x = problem()
    layout, (hessian, matrix) = block_layout("int2"), hessian_of(x)
    target = weights(rows, BLOCK)
    scales = searched_scales(target, layout, BLOCK)
    codes = rounded_in_turn(target, hessian, scales, layout)
    codes[0, :BLOCK] = 0  # a block of zeros keeps its scale
    fitted = refitted(codes, target @ matrix, hessian, scales)
    assert fitted[0, 0] == scales[0, 0]
    root = np.linalg.cholesky(matrix).T
    for row in range(1, ROWS):
        blocks = np.zeros((COLUMNS, 2))
        blocks[:BLOCK, 0], blocks[BLOCK:, 1] = codes[row, :BLOCK], codes[row, BLOCK:]
        expected = np.linalg.lstsq(root @ blocks, root @ target[row], rcond=None)[0]
        np.testing.assert_allclose(fitted[row], expected, rtol=1e-8)


@pytest.mark.parametrize("residual", [False, True])
def test_corrected_weights_give_what_the_source_gives(residual):
    """They solve least squares with a term that holds them to the weights."""
    rows, source = problem()
    random = np.random.default_rng(5)
    x = source + 0.3 * random.standard_normal(source.shape)
    strayed = random.standard_normal((len(x), ROWS)) + x[:, :ROWS]
    seen = inputs(x, source, strayed if residual else None)
    hold = np.sqrt(len(x) * seen.hessian.added)
    goal = source @ rows.T + (strayed if residual else 0)
    left = np.concatenate([x, hold * np.eye(COLUMNS)])
    right = np.concatenate([goal, hold * rows.T.astype(np.float64)])
    expected = np.linalg.lstsq(left, right, rcond=None)[0].T
    np.testing.assert_allclose(corrected(rows, seen, BLOCK), expected, rtol=1e-6, atol=1e-9)


def swept(codes, target, hessian, scales, layout):
    """Two sweeps from the first column to the last, each error computed anew; O(K^3) a row."""
    steps = np.repeat(scales, BLOCK, axis=1)
    for _ in range(2):
        for column in range(COLUMNS):
            slope = (codes * steps - target) @ hessian[:, column]
            best = codes[:, column] - slope / hessian[column, column] / steps[:, column]
            codes[:, column] = np.clip(np.rint(best), layout.low, layout.high)
    return codes


def least_squares(codes, target, hessian):
    root, scales = np.linalg.cholesky(hessian).T, []
    for row, goal in zip(codes.reshape(ROWS, -1, BLOCK), target, strict=True):
        blocks = np.zeros((COLUMNS, len(row)))
        for number, block in enumerate(row):
            blocks[number * BLOCK : (number + 1) * BLOCK, number] = block
        scales.append(np.linalg.lstsq(root @ blocks, root @ goal, rcond=None)[0])
    return np.array(scales)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("is_alone", [False, True])
def test_residual_finds_the_codes_of_the_direct_computation(name, is_alone):
    """From sums over tokens to codes, where several matrices read the inputs or one alone."""
    rows, x = problem(7)
    random, layout = np.random.default_rng(8), block_layout(name)
    x = x.astype(np.float32)
    drift = (0.3 * random.standard_normal(x.shape)).astype(np.float32)
    change = drift @ rows.T + (x[:, :ROWS] if is_alone else 0)
    moments = Moments(Needs.RESIDUAL, COLUMNS)
    for some in (slice(0, 77), slice(77, None)):
        moments.add([Tokens(x[some], *((None, change[some]) if is_alone else (drift[some],)))])
    packed = quantise_rows(rows, name, BLOCK, "residual", moments.means())
    matrix = products(x.astype(np.float64))
    matrix += 0.01 * np.trace(matrix) / COLUMNS * np.eye(COLUMNS)
    missing = change.astype(np.float64).T @ x / len(x)
    target = rows + np.linalg.solve(matrix, missing.T).T
    scales = searched_scales(target, layout, BLOCK, np.diag(matrix) / np.diag(matrix).mean())
    codes = one_by_one(target, matrix, scales, layout, BLOCK)
    for _ in range(2):
        scales = least_squares(codes, target, matrix)
        codes = swept(codes, target, matrix, scales, layout)
    np.testing.assert_array_equal(layout.integers(packed), codes)
    np.testing.assert_allclose(packed.scales, least_squares(codes, target, matrix), rtol=1e-4)


def test_methods_that_know_the_source_come_closer_to_its_outputs():
    rows, source = problem(columns=64, tokens=400)
    x = source + 0.5 * np.random.default_rng(1).standard_normal(source.shape)
    strayed = x[:, :ROWS] * 0.5
    errors, with_residual = {}, {}
    for method in ("gptq", "gptaq", "residual"):
        missing = strayed if method == "residual" else None
        packed = quantise_rows(rows, "int8", BLOCK, method, inputs(x, source, missing))
        outputs = x @ block_layout("int8").unpack(packed).T
        errors[method] = float(np.square(source @ rows.T - outputs).sum())
        with_residual[method] = float(np.square(source @ rows.T + strayed - outputs).sum())
    assert errors["gptaq"] < errors["gptq"]
    assert with_residual["residual"] < with_residual["gptaq"]


@pytest.mark.parametrize("method", ["gptq", "descent", "gptaq", "residual"])
def test_silent_inputs_and_few_tokens_leave_weights_that_are_rounded(method):
    rows, x = problem(tokens=3)  # a Hessian of rank 3
    x[:, 5] = 0
    packed = quantise_rows(rows, "int4", BLOCK, method, inputs(x))
    layout = block_layout("int4")
    assert np.isfinite(packed.scales).all()
    # Nothing hangs together with a silent input, so its weights are rounded for themselves.
    scales = packed.scales[:, 0].astype(np.float64)
    nearest = np.clip(np.rint(rows[:, 5] / scales), layout.low, layout.high)
    np.testing.assert_array_equal(layout.integers(packed)[:, 5], nearest)
    nothing = quantise_rows(rows, "int4", BLOCK, method, inputs(np.zeros_like(x)))
    difference = block_layout("int4").unpack(nothing) - rows
    assert np.square(difference).mean() < 0.02


def test_no_sum_of_a_text_is_singular_once_it_is_damped():
    """However large some inputs are, and though all of them go together."""
    sizes = 10.0 ** np.linspace(-9, 9, COLUMNS)
    x = np.random.default_rng(0).standard_normal((50, 1)) * sizes
    sums = x.astype(np.float32).T @ x.astype(np.float32)  # as they are made
    hessian = Hessian(sums.astype(float))
    values = np.linalg.eigvalsh(hessian.whole())
    hessian.factor()
    assert not hessian.was_singular
    assert values.min() > 0
    assert values.max() / values.min() < 101 * COLUMNS


def test_what_has_no_root_gets_more_on_its_diagonal():
    """As rounded sums may be, of very wide inputs."""
    sums = products(problem()[1])
    values, vectors = np.linalg.eigh(sums)
    values[0] = -0.05 * values.mean()
    hessian = Hessian((vectors * values) @ vectors.T)
    before = hessian.added
    upper = np.triu(hessian.factor())
    assert hessian.was_singular and hessian.added == pytest.approx(10 * before)
    order = hessian.order
    inverse = np.linalg.inv(hessian.whole()[np.ix_(order, order)])
    np.testing.assert_allclose(upper.T @ upper, inverse, rtol=1e-6, atol=1e-9)
    sums[3, 3] = np.inf
    with pytest.raises(np.linalg.LinAlgError):
        Hessian(sums).factor()


def test_one_matrix_holds_what_is_asked_of_it():
    """Before and after the factor is made beside it; sizes around strips and panels."""
    random = np.random.default_rng(0)
    for size in (1, 33, 130, 600):
        sums = products(random.standard_normal((2 * size, size)))
        values = random.standard_normal((size, 5))
        hessian, whole = Hessian(np.tril(sums)), sums + 0.01 * np.eye(size) * np.trace(sums) / size
        for _ in range(2):
            np.testing.assert_allclose(hessian.whole(), whole, rtol=1e-12)
            np.testing.assert_allclose(hessian.product(values), whole @ values, atol=1e-10)
            start, stop = size // 3, max(size // 2, size // 3 + 1)
            out = np.ones((size, 5))
            hessian.spread(start, values[start:stop], out)
            expected = 1 + whole[:, start:stop] @ values[start:stop]
            np.testing.assert_allclose(out, expected, atol=1e-10)
            reach = hessian.reach(start, values[start:stop].T)
            expected = values[start:stop].T @ whole[start:stop, :stop]
            np.testing.assert_allclose(reach, expected, atol=1e-10)
            error = float(np.einsum("kn,kl,ln->", values, sums, values))
            assert hessian.error(values.T) == pytest.approx(error)
            solved = hessian.solve(values.T)
        np.testing.assert_allclose(solved @ whole, values.T, atol=1e-8)


def test_importances_decide_what_is_rounded_well():
    rows, x = problem()
    x[:, ::2] *= 10
    seen = inputs(x)
    plain, weighted = (quantise_rows(rows, "int2", BLOCK, "mse", k) for k in (None, seen))
    importance = np.diag(seen.importance)
    assert loss(rows, weighted, importance) < 0.9 * loss(rows, plain, importance)


def test_zero_weights_stay_zero():
    _, x = problem()
    rows = np.zeros((ROWS, COLUMNS), np.float32)
    for method in ("gptq", "descent"):
        packed = quantise_rows(rows, "int2", BLOCK, method, inputs(x))
        assert not block_layout("int2").unpack(packed).any()
