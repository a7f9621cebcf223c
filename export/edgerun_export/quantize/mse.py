"""Round to nearest, with the scale of each block searched for the least squared error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat, PackedWeight
from edgerun_export.quantize.blocks import Float, encode, padded
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


def fit(rows: F32, layout: BlockFormat, block: int, inputs: Inputs | None) -> PackedWeight:
    """Quantises float32 ``[n, K]``; with calibration an error weighs what its input does."""
    whole = padded(rows, block)
    if inputs is None:
        return encode(rows, searched_scales(whole, layout, block), layout, block)
    weights = padded(_relative(inputs.importance)[None], block)[0]
    return encode(rows, searched_scales(whole, layout, block, weights), layout, block)


def _relative(importance: NDArray[np.float64]) -> F32:
    """Relative to the mean, and never nothing: inputs may be silent in one text alone."""
    mean = float(importance.mean())
    if mean == 0:
        return np.ones(len(importance), np.float32)
    return (importance / mean + 0.01).astype(np.float32)


METHOD = Method(fit)
