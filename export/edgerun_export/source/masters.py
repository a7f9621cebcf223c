"""Ternary values of float weights that a b1.58 model was trained with.

Ma et al. 2024, equations 1 to 3, as transformers' ``WeightQuant`` computes them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


def absmean(slabs: Iterable[F32]) -> np.float32:
    """The factor of a matrix: 1 through the mean of magnitudes.

    Args:
        slabs: its rows, some at a time.
    """
    total, count = 0.0, 0
    for rows in slabs:
        total += float(np.abs(rows).sum(dtype=np.float64))
        count += rows.size
    return np.float32(1) / max(np.float32(total / count), np.float32(1e-5))


def round_by(rows: F32, factor: np.float32) -> tuple[NDArray[np.int8], F32]:
    """Values -1, 0 and 1 of some rows ``[n, K]``, and the scale of each row, ``[n, 1]``."""
    values = np.clip(np.rint(rows * factor), -1, 1).astype(np.int8)
    return values, np.full((len(values), 1), np.float32(1) / factor, np.float32)
