"""Finding the largest of many numbers without sorting them all, in NumPy."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

MIN_GROUPS = 1024
BLOCK = 512
HEADS = (64, 1024)  # how many tokens to look at before looking at all: sorting takes its time
BINS = 2048
BINS_PER_UNIT = 64  # of a logit; the last bin takes whatever lies below
SLAB = 12_288  # keys put into bins at a time: small arrays need no fresh pages of the system

_LOCAL = threading.local()


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


def place(weights: NDArray[np.float32], mass: float) -> int:
    """Returns the first index whose running sum exceeds ``mass``, the last one if none does.

    NumPy's cumsum adds one by one; summing blocks first and looking into a single block is fifty
    times faster for a large vocabulary.

    Args:
        weights: not negative, float32 ``[n]``, n at least 1.
        mass: in the units of the weights.
    """
    block, before = 0, 0.0
    if len(weights) > BLOCK:
        whole = len(weights) // BLOCK * BLOCK
        sums = weights[:whole].reshape(-1, BLOCK).sum(axis=1, dtype=np.float64)
        edges = np.cumsum(np.append(sums, weights[whole:].sum(dtype=np.float64)))
        block = min(int(edges.searchsorted(mass, side="right")), len(edges) - 1)
        before = edges[block - 1] if block else 0.0
    inside = before + np.cumsum(weights[block * BLOCK : (block + 1) * BLOCK], dtype=np.float64)
    index = block * BLOCK + int(inside.searchsorted(mass, side="right"))
    return min(index, len(weights) - 1)


def scratch(name: str, size: int, dtype: str = "f4") -> NDArray[Any]:
    """An uninitialised array that holds until this thread asks for the same name again.

    Fresh arrays as long as a large vocabulary would take their pages from the system each time,
    which takes longer than the arithmetic.
    """
    arrays: dict[str, NDArray[Any]] = _LOCAL.__dict__
    if name not in arrays or len(arrays[name]) < size:
        arrays[name] = np.empty(size, dtype)
    return arrays[name][:size]


def last_of_fewest(
    keys: NDArray[np.float32], weights: NDArray[np.float32], mass: float
) -> np.float32:
    """Returns the smallest key among the fewest largest ones whose weights sum to ``mass``.

    Most such sets are small, so a few leaders are tried first, then more. Otherwise weights are
    summed by bins of keys, and only the bin in which the sum is reached gets sorted. Sums are
    float64, so that the result does not depend on the way unless two sets differ by less than its
    precision.

    Args:
        keys: what to order by, float32 ``[n]``, n at least 1; no NaN, the largest finite.
        weights: not negative, float32 ``[n]``.
        mass: wanted sum; more than there is gives the smallest key.
    """
    for head in HEADS:
        chosen = leaders(keys, head)
        if len(chosen) == len(keys) or weights[chosen].sum(dtype=np.float64) >= mass:
            break
    else:
        chosen, mass = _reaching_bin(keys, weights, mass)
    order = chosen[np.argsort(-keys[chosen])]
    sums = np.cumsum(weights[order], dtype=np.float64)
    last: np.float32 = keys[order[min(int(np.searchsorted(sums, mass)), len(order) - 1)]]
    return last


def _reaching_bin(
    keys: NDArray[np.float32], weights: NDArray[np.float32], mass: float
) -> tuple[NDArray[np.int64], float]:
    """Positions in the bin where the sum of weights reaches ``mass``, and what is left for it."""
    bins, sums, top = scratch("bins", len(keys), "u2"), np.zeros(BINS), keys.max()
    for start in range(0, len(keys), SLAB):
        part = slice(start, start + SLAB)
        depth = top - keys[part]
        depth *= np.float32(BINS_PER_UNIT)
        np.minimum(depth, np.float32(BINS - 1), out=depth)
        bins[part] = depth
        sums += np.bincount(depth.astype(np.intp), weights[part], BINS)
    edges = np.cumsum(sums)
    reaching = min(int(np.searchsorted(edges, mass)), int(bins.max()))
    before = float(edges[reaching - 1]) if reaching else 0.0
    return np.flatnonzero(bins == reaching), mass - before
