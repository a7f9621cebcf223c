"""Ternary weights fitted group by group."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat, PackedWeight
from edgerun_export.quantize.blocks import Grid, encode, padded
from edgerun_export.quantize.method import Inputs, Method

F32 = NDArray[np.float32]


def fit(rows: F32, layout: BlockFormat, block: int, inputs: Inputs | None) -> PackedWeight:
    """Finds the ternary values and scales with the least squared error in every group.

    With the t largest magnitudes of a group kept, the best scale is their mean and the error falls
    by (their sum)^2 / t; sorting finds the best t exactly. Li and Liu 2016 (ternary weight
    networks, equation 4) approximate the same optimum by a threshold.
    """
    groups = padded(rows, block).reshape(len(rows), -1, block)
    magnitudes = -np.sort(-np.abs(groups), axis=-1)
    sums = np.cumsum(magnitudes, axis=-1, dtype=np.float64)
    counts = np.arange(1, block + 1)
    support = (sums * sums / counts).argmax(axis=-1)[..., None]
    scales = (np.take_along_axis(sums, support, -1) / (support + 1))[..., 0]
    return encode(rows, Grid(scales.astype(np.float32)), layout, block)


METHOD = Method(fit, formats=("ternary",), usual_for=("ternary",))
