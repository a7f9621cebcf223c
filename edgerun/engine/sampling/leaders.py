"""Finding the largest of many numbers without sorting them, in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MIN_GROUPS = 1024


def leaders(keys: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Positions of the ``count`` largest keys and of a few more, increasing.

    All keys that equal or exceed one of those returned are returned too. Keys are dealt into
    groups; the ``count``-th largest of the groups' maxima bounds the ``count``-th largest key from
    below, and finding maxima is many times faster than a partition of a large vocabulary.

    Args:
        keys: float32 ``[n]`` without NaN.
        count: at least 1; all positions are returned if there are no more.
    """
    groups = max(MIN_GROUPS, 4 * count)
    rows = len(keys) // groups
    if rows < 2:
        return np.arange(len(keys))
    tops = keys[: rows * groups].reshape(rows, groups).max(axis=0)
    bound = np.partition(tops, groups - count)[groups - count]
    return np.flatnonzero(keys >= bound)
