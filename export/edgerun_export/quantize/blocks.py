"""Cuts rows into blocks that share a scale; what all methods have in common."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat, PackedWeight

F32 = NDArray[np.float32]


def padded(rows: F32, block: int) -> F32:
    """Appends zeros to float32 ``[n, K]`` until K is a multiple of ``block``."""
    missing = -rows.shape[1] % block
    return np.pad(rows, ((0, 0), (0, missing))) if missing else rows


def encode(rows: F32, scales: F32, layout: BlockFormat, block: int) -> PackedWeight:
    """Rounds float32 ``[n, K]`` to the codes of ``layout`` with scales ``[n, ceil(K / block)]``."""
    packed = layout.encode(padded(rows, block), scales, block)
    return replace(packed, shape=(rows.shape[0], rows.shape[1]))
