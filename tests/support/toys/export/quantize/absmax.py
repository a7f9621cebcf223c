"""Scales every block so that its largest magnitude is the last code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat, PackedWeight
from edgerun_export.quantize.blocks import Grid, encode, padded
from edgerun_export.quantize.method import Inputs, Method


def quantise(
    rows: NDArray[np.float32], layout: BlockFormat, block: int, inputs: Inputs | None
) -> PackedWeight:
    blocks = padded(rows, block).reshape(len(rows), -1, block)
    scales = np.abs(blocks).max(axis=-1) / np.float32(layout.high)
    return encode(rows, Grid(scales), layout, block)


METHOD = Method(quantise)
