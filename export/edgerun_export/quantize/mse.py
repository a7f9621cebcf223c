"""Round to nearest, with the scale of each block searched for the least squared error."""

from __future__ import annotations

from typing import Generic

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat, PackedWeight
from edgerun_export.quantize.blocks import Float, Grid, encode, padded
from edgerun_export.quantize.method import Inputs, Method

F32 = NDArray[np.float32]


# Candidate scales by bits, relative to the weight of largest magnitude in the block; below 1 the
# extreme weights are clipped. With 8 bits that never pays; with 2 it nearly always does. The code
# range has one code more below zero, which a scale of the other sign than the extreme weight uses.
# Error on SmolLM2-135M's projections, groups of 32: 4 bits 0.0776 (nine positive candidates 0.0913,
# 52 of both signs 0.0774), 2 bits 0.3366 (fifteen positive ones 0.4121, 98 of both signs 0.3366).
_CANDIDATES: dict[int, F32] = {
    8: np.array([1 / 127], np.float32),
    4: np.array([*np.linspace(0.80, 1.04, 5) / 7, *np.linspace(0.80, 1.04, 5) / -8], np.float32),
    2: np.array([*np.linspace(0.30, 1.00, 8) / 1, *np.linspace(0.50, 1.30, 8) / -2], np.float32),
}

# Ranges of candidates with zero points, relative to that from the least to the greatest weight.
_RANGES: dict[int, F32] = {
    8: np.ones(1, np.float32),
    4: np.linspace(0.76, 1.04, 8, dtype=np.float32),
    2: np.linspace(0.30, 1.00, 8, dtype=np.float32),
}


def searched_scales(
    rows: NDArray[Float],
    layout: BlockFormat,
    block: int,
    importance: NDArray[Float] | None = None,
) -> NDArray[Float]:
    """The best of some scales for every block, of either sign.

    For every candidate the codes q are found by rounding; the best scale for given codes is
    sum(wq) / sum(qq), and leaves the error sum(ww) - sum(wq)^2 / sum(qq).

    Args:
        rows: weights ``[n, K]``, K a multiple of ``block``.
        layout: format of the codes.
        block: weights that share a scale.
        importance: what an error of each column weighs, ``[K]``; all the same if left out.

    Returns:
        Scales ``[n, K / block]``, 0 for blocks of nothing but zeros.
    """
    blocks = rows.reshape(len(rows), -1, block)
    weighted = blocks if importance is None else blocks * importance.reshape(1, -1, block)
    smallest, largest = blocks.min(axis=-1), blocks.max(axis=-1)
    extreme = np.where(-smallest > largest, smallest, largest)
    best: NDArray[Float] = np.zeros_like(extreme)
    gain = np.zeros_like(extreme)
    for ratio in _CANDIDATES[layout.bits]:
        scale = extreme * ratio
        codes = blocks / np.where(scale != 0, scale, np.ones_like(scale))[..., None]
        np.clip(np.rint(codes, out=codes), layout.low, layout.high, out=codes)
        product = np.einsum("nbk,nbk->nb", weighted, codes)
        if importance is None:
            square = np.einsum("nbk,nbk->nb", codes, codes)
        else:
            square = np.einsum("nbk,nbk,bk->nb", codes, codes, importance.reshape(-1, block))
        square[square == 0] = 1
        explained = product * product / square
        better = explained > gain
        gain[better] = explained[better]
        best[better] = (product / square)[better]
    return best


def searched_grid(
    rows: NDArray[Float],
    layout: BlockFormat,
    block: int,
    importance: NDArray[Float] | None = None,
) -> Grid[Float]:
    """The best of some scales for every block, and if the format has them of some zero points.

    Arguments are those of :func:`searched_scales`. With zero points a block is no worse than with
    the middle of the codes, from which the search begins. The grid of ``2^n`` times the weights is
    ``2^n`` times theirs, up to the largest and down to the smallest weights that there are.
    """
    blocks = rows.reshape(len(rows), -1, block)
    # What is searched by are squares, which are infinite or nothing for numbers far from 1.
    _, exponents = np.frexp(np.abs(blocks).max(axis=-1))
    near_one = np.ldexp(blocks, -exponents[..., None]).reshape(rows.shape)
    grid = _searched_near_one(near_one, layout, block, importance)
    return Grid(np.ldexp(grid.scales, exponents), grid.shifts)


def _searched_near_one(
    rows: NDArray[Float], layout: BlockFormat, block: int, importance: NDArray[Float] | None
) -> Grid[Float]:
    scales = searched_scales(rows, layout, block, importance)
    if not layout.has_zeros:
        return Grid(scales)
    blocks = rows.reshape(len(rows), -1, block)
    weights = np.ones_like(rows[0]) if importance is None else importance
    search = _ZeroSearch(blocks, weights.reshape(-1, block), layout, scales)
    least, greatest = blocks.min(axis=-1, initial=0), blocks.max(axis=-1, initial=0)
    for ratio in _RANGES[layout.bits]:
        steps = (greatest - least) * ratio / (layout.high - layout.low)
        safe = np.where(steps != 0, steps, np.ones_like(steps))
        exact = -((greatest + least) - (greatest - least) * ratio) / 2 / safe
        for point in (np.floor(exact), np.ceil(exact)):
            search.consider(safe, np.clip(point, 0, layout.high - layout.low))
    return Grid(search.scales, search.shifts)


class _ZeroSearch(Generic[Float]):
    """The best grid of every block so far."""

    def __init__(
        self,
        blocks: NDArray[Float],
        weights: NDArray[Float],
        layout: BlockFormat,
        scales: NDArray[Float],
    ) -> None:
        self._blocks: NDArray[Float] = blocks
        self._weights: NDArray[Float] = weights
        self._layout = layout
        self.scales: NDArray[Float] = np.zeros_like(scales)
        self.shifts: NDArray[Float] = np.zeros_like(scales)
        self._gain: NDArray[Float] = np.zeros_like(scales)
        self.consider(np.where(scales != 0, scales, np.ones_like(scales)), None)

    def consider(self, steps: NDArray[Float], points: NDArray[Float] | None) -> None:
        """Takes the codes that scales and zero points give, with the best scales for them."""
        layout, blocks = self._layout, self._blocks
        middle = 2 ** (layout.bits - 1)
        shifts = np.zeros_like(steps) if points is None else middle - points
        integers = np.rint(blocks / steps[..., None])
        low, high = (each + shifts[..., None] for each in (layout.low, layout.high))
        np.clip(integers, low, high, out=integers)
        product = np.einsum("nbk,nbk,bk->nb", blocks, integers, self._weights)
        square = np.einsum("nbk,nbk,bk->nb", integers, integers, self._weights)
        square[square == 0] = 1
        explained = product * product / square
        better = explained > self._gain
        self._gain[better] = explained[better]
        self.scales[better] = (product / square)[better]
        self.shifts[better] = shifts[better]


def fit(rows: F32, layout: BlockFormat, block: int, inputs: Inputs | None) -> PackedWeight:
    """Quantises float32 ``[n, K]``; with calibration an error weighs what its input does."""
    whole = padded(rows, block)
    if inputs is None:
        return encode(rows, searched_grid(whole, layout, block), layout, block)
    weights = padded(_relative(inputs.importance)[None], block)[0]
    return encode(rows, searched_grid(whole, layout, block, weights), layout, block)


def _relative(importance: NDArray[np.float64]) -> F32:
    """Relative to the mean, and never nothing: inputs may be silent in one text alone."""
    mean = float(importance.mean())
    if mean == 0:
        return np.ones(len(importance), np.float32)
    return (importance / mean + 0.01).astype(np.float32)


METHOD = Method(fit, makes_zeros=True)
