"""The triangle of an inverse against NumPy's own inverse and root."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun_export.quantize.factor import inverse_factor

SIZES = [(1, 4), (4, 4), (5, 4), (31, 8), (130, 128), (257, 64)]


@pytest.mark.parametrize(("size", "panel"), SIZES)
def test_is_the_root_of_the_inverse_and_takes_its_place(size: int, panel: int) -> None:
    rng = np.random.default_rng(size)
    inputs = rng.standard_normal((2 * size, size)) * rng.uniform(0.01, 10, size)
    matrix = inputs.T @ inputs / len(inputs) + 0.01 * np.eye(size)
    expected = np.linalg.cholesky(np.linalg.inv(matrix)).T
    factor = inverse_factor(matrix, panel)
    assert factor is matrix
    np.testing.assert_allclose(factor, expected, atol=1e-9 * np.abs(expected).max())
    assert not np.tril(factor, -1).any()
    assert (np.diag(factor) > 0).all()


def test_a_matrix_that_is_not_positive_definite_is_refused() -> None:
    with pytest.raises(np.linalg.LinAlgError):
        inverse_factor(np.array([[1.0, 2.0], [2.0, 1.0]]))
