"""The triangle of an inverse against NumPy's own inverse and root."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun_export.quantize.factor import (
    inverse_factor,
    multiply_upper,
    multiply_upper_transposed,
)

SIZES = [(1, 4), (4, 4), (5, 4), (31, 8), (130, 128), (257, 64)]


@pytest.mark.parametrize(("size", "panel"), SIZES)
def test_is_the_root_of_the_inverse_and_takes_the_upper_triangle(size: int, panel: int) -> None:
    rng = np.random.default_rng(size)
    inputs = rng.standard_normal((2 * size, size)) * rng.uniform(0.01, 10, size)
    matrix = inputs.T @ inputs / len(inputs) + 0.01 * np.eye(size)
    expected = np.linalg.cholesky(np.linalg.inv(matrix)).T
    below = np.tril(rng.standard_normal((size, size)), -1)  # is nobody's business
    matrix = np.triu(matrix) + below
    inverse_factor(matrix, panel)
    np.testing.assert_allclose(np.triu(matrix), expected, atol=1e-9 * np.abs(expected).max())
    np.testing.assert_array_equal(np.tril(matrix, -1), below)
    assert (np.diag(matrix) > 0).all()
    values = rng.standard_normal((size, 3))
    for multiply, factor in (
        (multiply_upper, expected),
        (multiply_upper_transposed, expected.T),
    ):
        out = values.copy()
        multiply(matrix, out, panel)
        product = factor @ values
        np.testing.assert_allclose(out, product, atol=1e-9 * np.abs(product).max())


def test_a_matrix_that_is_not_positive_definite_is_refused() -> None:
    with pytest.raises(np.linalg.LinAlgError):
        inverse_factor(np.array([[1.0, 2.0], [2.0, 1.0]]))
