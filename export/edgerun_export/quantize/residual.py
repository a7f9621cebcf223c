"""Descent towards the source's outputs, and towards its residual stream."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat, PackedWeight
from edgerun_export.quantize.blocks import pack
from edgerun_export.quantize.columns import corrected, settled
from edgerun_export.quantize.method import Inputs, Method, Needs

F32 = NDArray[np.float32]


def fit(rows: F32, layout: BlockFormat, block: int, inputs: Inputs | None) -> PackedWeight:
    """Quantises float32 ``[n, K]``.

    Every matrix is fitted to give what the source's gives (as ``gptaq``), and those that add to
    the residual stream bring it back to the source's as far as their inputs tell how it strayed.
    """
    assert inputs is not None and inputs.hessian is not None
    codes, grid = settled(corrected(rows, inputs, block), inputs.hessian, layout, block)
    return pack(codes, grid, layout, block, rows.shape[1])


METHOD = Method(fit, Needs.RESIDUAL, makes_zeros=True)
