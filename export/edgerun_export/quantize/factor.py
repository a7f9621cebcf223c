"""The triangle that tells what rounding one column asks of those behind it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
_PANEL = 128  # columns at a time; all but their corners are matrix products


def inverse_factor(matrix: F64, panel: int = _PANEL) -> None:
    """Puts U into the upper triangle of a matrix: ``UᵀU`` is its inverse, U's diagonal positive.

    ``np.linalg.cholesky(np.linalg.inv(matrix)).T``, in a third of the operations and without a
    second matrix of that size: ``matrix = M Mᵀ`` with M upper triangular, so U is the inverse of M.

    Args:
        matrix: positive definite ``[K, K]``, of which only the upper triangle is read and changed.
        panel: columns at a time.

    Raises:
        numpy.linalg.LinAlgError: it is not positive definite; the triangle is lost.
    """
    for here in reversed([*_spans(len(matrix), panel)]):
        above, behind = slice(0, here.start), slice(here.stop, len(matrix))
        change = matrix[: here.stop, behind] @ matrix[here, behind].T
        corner = _upper_root(matrix[here, here] - change[here])
        put_upper(matrix[here, here], corner)
        left = matrix[above, here] - change[above]
        matrix[above, here] = np.linalg.solve(corner, left.T).T
    for here in _spans(len(matrix), panel):
        above = slice(0, here.start)
        inverse = np.linalg.inv(np.triu(matrix[here, here]))
        product = np.ascontiguousarray(matrix[above, here])
        multiply_upper(matrix, product, panel)
        matrix[above, here] = product @ -inverse
        put_upper(matrix[here, here], np.asarray(inverse, np.float64))


def multiply_upper(factor: F64, values: F64, panel: int = _PANEL) -> None:
    """``U values`` in the place of values ``[n, m]``: U is the upper triangle of n columns."""
    for rows in _spans(len(values), panel):
        behind = slice(rows.stop, len(values))
        product = np.triu(factor[rows, rows]) @ values[rows]
        values[rows] = product + factor[rows, behind] @ values[behind]


def multiply_upper_transposed(factor: F64, values: F64, panel: int = _PANEL) -> None:
    """``Uᵀ values`` in the place of values ``[K, m]``: U is the upper triangle."""
    for rows in reversed([*_spans(len(values), panel)]):
        above = slice(0, rows.start)
        product = np.triu(factor[rows, rows]).T @ values[rows]
        values[rows] = product + factor[above, rows].T @ values[above]


def put_upper(block: F64, values: F64) -> None:
    """Writes the upper triangle of a square block, the diagonal included."""
    upper = np.triu(np.ones(block.shape, bool))
    block[upper] = values[upper]


def _spans(size: int, panel: int) -> Iterator[slice]:
    for start in range(0, size, panel):
        yield slice(start, min(start + panel, size))


def _upper_root(matrix: F64) -> F64:
    """The upper triangular M with ``M Mᵀ = matrix``: Cholesky's, from the last column on.

    Only the upper triangle is read.
    """
    root = np.linalg.cholesky(matrix[::-1, ::-1])[::-1, ::-1]
    return np.asarray(root, np.float64)
