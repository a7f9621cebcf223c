"""GPTAQ: GPTQ towards what the source's layer gives from the source's inputs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat, PackedWeight
from edgerun_export.quantize.blocks import pack
from edgerun_export.quantize.columns import corrected, importance, rounded_in_turn
from edgerun_export.quantize.method import Inputs, Method, Needs
from edgerun_export.quantize.mse import searched_grid

F32 = NDArray[np.float32]


def fit(rows: F32, layout: BlockFormat, block: int, inputs: Inputs | None) -> PackedWeight:
    """Quantises float32 ``[n, K]`` (Li et al. 2025).

    Their term of ``X_source - X`` is put into the weights before the first column is rounded,
    which minimises the same error: given the columns that are rounded, the others are the least
    squares solution of the whole problem.
    """
    assert inputs is not None and inputs.hessian is not None
    hessian, target = inputs.hessian, corrected(rows, inputs, block)
    grid = searched_grid(target, layout, block, importance(hessian, block))
    codes = rounded_in_turn(grid.centred(target), hessian, grid.scales, layout)
    return pack(codes, grid, layout, block, rows.shape[1])


METHOD = Method(fit, Needs.SOURCE, makes_zeros=True)
