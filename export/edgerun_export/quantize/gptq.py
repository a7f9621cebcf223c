"""GPTQ: rounds column by column, and later columns make up for the error of earlier ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat, PackedWeight
from edgerun_export.quantize.blocks import pack
from edgerun_export.quantize.columns import importance, rounded_in_turn, weights
from edgerun_export.quantize.method import Inputs, Method, Needs
from edgerun_export.quantize.mse import searched_grid

F32 = NDArray[np.float32]


def fit(rows: F32, layout: BlockFormat, block: int, inputs: Inputs | None) -> PackedWeight:
    """Quantises float32 ``[n, K]`` (Frantar et al. 2022).

    Scales are those of ``mse``, errors weighed by the Hessian's diagonal, and stay as they are,
    so that columns can go in any order.
    """
    assert inputs is not None and inputs.hessian is not None
    hessian, target = inputs.hessian, weights(rows, block)
    grid = searched_grid(target, layout, block, importance(hessian, block))
    codes = rounded_in_turn(grid.centred(target), hessian, grid.scales, layout)
    return pack(codes, grid, layout, block, rows.shape[1])


METHOD = Method(fit, Needs.HESSIAN, makes_zeros=True)
