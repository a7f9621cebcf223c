"""ternary: weights -1, 0, 1 times a scale, stored as two-bit codes 1, 2, 3 (zero point 2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat, PackedWeight


@dataclass(frozen=True, slots=True)
class TernaryFormat(BlockFormat):
    """Ternary weights; code 0 never occurs."""

    def pack(self, weight: NDArray[np.float32], block: int) -> PackedWeight:
        """Quantises with one scale for the matrix, its mean magnitude.

        This is the absmean rule of BitNet b1.58 (Ma et al. 2024, equations 1 to 3). Weights
        that are already ternary keep their values when their scale is passed to ``encode``.
        """
        scale = np.float32(np.abs(weight).mean(dtype=np.float64))
        scales = np.full((len(weight), weight.shape[1] // block), scale, np.float32)
        return self.encode(weight, scales, block)


# Scales are few anyway (one a matrix in native models), and 128 is what the 2-bit kernels of other
# runtimes are tuned for; the other formats lose quality quickly beyond 32.
FORMAT = TernaryFormat("ternary", bits=2, low=-1, high=1, group=128)
