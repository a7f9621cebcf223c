"""Round to nearest: the largest magnitude of a block is the last code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat, PackedWeight
from edgerun_export.quantize.blocks import encode, padded
from edgerun_export.quantize.method import Inputs, Method

F32 = NDArray[np.float32]


def fit(rows: F32, layout: BlockFormat, block: int, inputs: Inputs | None) -> PackedWeight:
    """Quantises float32 ``[n, K]``; the baseline that other methods are measured against."""
    blocks = padded(rows, block).reshape(len(rows), -1, block)
    return encode(rows, np.abs(blocks).max(axis=-1) / np.float32(layout.high), layout, block)


METHOD = Method(fit)
