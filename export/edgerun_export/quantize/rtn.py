"""Round to nearest, with the scale of each block searched for the least squared error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat, PackedWeight
from edgerun_export.quantize.blocks import encode, padded

F32 = NDArray[np.float32]

# Candidate scales relative to the one that maps a block's largest magnitude to the last code.
# With 8 bits clipping never pays; with 2 it nearly always does.
_CANDIDATES: dict[int, F32] = {
    8: np.array([1.0], np.float32),
    4: np.linspace(0.72, 1.04, 9, dtype=np.float32),
    2: np.linspace(0.30, 1.00, 15, dtype=np.float32),
}


def quantise(rows: F32, layout: BlockFormat, block: int) -> PackedWeight:
    """Quantises float32 ``[n, K]``.

    For every candidate scale the codes are found by rounding; the best scale for given codes q is
    sum(wq) / sum(qq), and leaves the error sum(ww) - sum(wq)^2 / sum(qq).
    """
    blocks = padded(rows, block).reshape(len(rows), -1, block)
    largest = np.abs(blocks).max(axis=-1) / np.float32(layout.high)
    best = largest.copy()
    gain = np.zeros_like(best)
    for ratio in _CANDIDATES[layout.bits]:
        scale = largest * ratio
        codes = blocks / np.where(scale > 0, scale, np.float32(1))[..., None]
        np.clip(np.rint(codes, out=codes), layout.low, layout.high, out=codes)
        product = np.einsum("nbk,nbk->nb", blocks, codes)
        square = np.einsum("nbk,nbk->nb", codes, codes)
        square[square == 0] = 1
        explained = product * product / square
        better = (explained > gain) & (product > 0)
        gain[better] = explained[better]
        best[better] = (product / square)[better]
    return encode(rows, best, layout, block)
