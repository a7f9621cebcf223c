"""Round to nearest: the ends of the codes are the extremes of a block, or its largest magnitude."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat, PackedWeight
from edgerun_export.quantize.blocks import padded
from edgerun_export.quantize.method import Inputs, Method

F32 = NDArray[np.float32]


def fit(rows: F32, layout: BlockFormat, block: int, inputs: Inputs | None) -> PackedWeight:
    """Quantises float32 ``[n, K]``; the baseline that other methods are measured against."""
    packed = BlockFormat.pack(layout, padded(rows, block), block)  # of ternary weights likewise
    return replace(packed, shape=(rows.shape[0], rows.shape[1]))


METHOD = Method(
    fit,
    usual_for=("int2_offset", "int4_offset", "int8_offset"),
    makes_zeros=True,
    makes_offsets=True,
)
