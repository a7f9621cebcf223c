"""The triangle that tells what rounding one column asks of those behind it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
_PANEL = 128  # columns at a time; all but their corners are matrix products


def inverse_factor(matrix: F64, panel: int = _PANEL) -> F64:
    """The upper triangular U with a positive diagonal for which ``UᵀU`` is a matrix's inverse.

    ``np.linalg.cholesky(np.linalg.inv(matrix)).T``, in a third of the operations and without a
    second matrix of that size: ``matrix = M Mᵀ`` with M upper triangular, so U is the inverse of M.

    Args:
        matrix: symmetric, positive definite, ``[K, K]``; U takes its place.
        panel: columns at a time.

    Returns:
        ``matrix``.

    Raises:
        numpy.linalg.LinAlgError: it is not positive definite.
    """
    size = len(matrix)
    spans = [slice(start, min(start + panel, size)) for start in range(0, size, panel)]
    for here in reversed(spans):
        above, behind = slice(0, here.start), slice(here.stop, size)
        matrix[: here.stop, here] -= matrix[: here.stop, behind] @ matrix[here, behind].T
        corner = _upper_root(matrix[here, here])
        matrix[here, here] = corner
        matrix[above, here] = np.linalg.solve(corner, matrix[above, here].T).T
    for here in spans:
        above, behind = slice(0, here.start), slice(here.stop, size)
        corner = np.triu(np.linalg.inv(matrix[here, here]))
        matrix[above, here] = matrix[above, above] @ matrix[above, here] @ -corner
        matrix[here, here] = corner
        matrix[behind, here] = 0.0
    return matrix


def _upper_root(matrix: F64) -> F64:
    """The upper triangular M with ``M Mᵀ = matrix``: Cholesky's, from the last column on."""
    root = np.linalg.cholesky(matrix[::-1, ::-1])[::-1, ::-1]
    return np.asarray(root, np.float64)
