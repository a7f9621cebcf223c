"""Round to nearest, with the scale of each block searched for the least squared error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat, PackedWeight
from edgerun_export.quantize.blocks import encode, padded
from edgerun_export.quantize.method import Method

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


def quantise(rows: F32, layout: BlockFormat, block: int) -> PackedWeight:
    """Quantises float32 ``[n, K]``.

    For every candidate scale the codes are found by rounding; the best scale for given codes q is
    sum(wq) / sum(qq), and leaves the error sum(ww) - sum(wq)^2 / sum(qq). Scales come out with
    either sign.
    """
    blocks = padded(rows, block).reshape(len(rows), -1, block)
    smallest, largest = blocks.min(axis=-1), blocks.max(axis=-1)
    extreme = np.where(-smallest > largest, smallest, largest)
    best = np.zeros_like(extreme)
    gain = np.zeros_like(extreme)
    for ratio in _CANDIDATES[layout.bits]:
        scale = extreme * ratio
        codes = blocks / np.where(scale != 0, scale, np.float32(1))[..., None]
        np.clip(np.rint(codes, out=codes), layout.low, layout.high, out=codes)
        product = np.einsum("nbk,nbk->nb", blocks, codes)
        square = np.einsum("nbk,nbk->nb", codes, codes)
        square[square == 0] = 1
        explained = product * product / square
        better = explained > gain
        gain[better] = explained[better]
        best[better] = (product / square)[better]
    return encode(rows, best, layout, block)


METHOD = Method(quantise)
