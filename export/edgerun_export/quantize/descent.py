"""GPTQ, then sweeps over the columns and scales fitted anew, in turns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat, PackedWeight
from edgerun_export.quantize.blocks import pack
from edgerun_export.quantize.columns import settled, weights
from edgerun_export.quantize.method import Inputs, Method, Needs

F32 = NDArray[np.float32]


def fit(rows: F32, layout: BlockFormat, block: int, inputs: Inputs | None) -> PackedWeight:
    """Quantises float32 ``[n, K]`` (OBQ's objective; QuantEase, Behdin et al. 2023)."""
    assert inputs is not None and inputs.hessian is not None
    codes, grid = settled(weights(rows, block), inputs.hessian, layout, block)
    return pack(codes, grid, layout, block, rows.shape[1])


METHOD = Method(fit, Needs.HESSIAN, makes_zeros=True)
