"""Ternary matrices as they are trained and stored; no torch.

A matrix ``[N, K]`` is cut along K into groups of 32 that share a scale, as a bundle has it. What is
trained are *units*, float32 ``[N, groups, 32]``, and scales ``[N, groups]``: a weight is the unit
rounded to -1, 0 or 1, times the scale. Units of columns behind K are 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import PackedWeight
from edgerun_export.quantize import block_layout

F32 = NDArray[np.float32]
GROUP = 32
FORMAT = "ternary"
REACH = 0.45  # how far from its code a unit begins at most: it still rounds to the code


@dataclass(frozen=True, slots=True)
class Trained:
    """A matrix in training.

    Attributes:
        units: float32 ``[N, groups, 32]``.
        scales: float32 ``[N, groups]``, not negative.
        columns: K.
    """

    units: F32
    scales: F32
    columns: int

    def values(self) -> F32:
        """The weights ``[N, K]``, scales in half precision: what a checkpoint stores.

        The exact ternary optimum of such a group is the group itself: ``edgerun export --weights
        ternary`` finds these codes and these scales again, bit for bit.
        """
        codes = np.clip(np.rint(self.units), -1, 1)
        scales = self.scales.astype(np.float16).astype(np.float32)
        weights: F32 = codes * scales[..., None]
        return weights.reshape(len(weights), -1)[:, : self.columns]


def begin(packed: PackedWeight, rows: F32) -> Trained:
    """What training begins with: the codes of a fit, and as far as they allow the source's rows.

    Where a scale is 0 the mean magnitude of the source's takes its place, so that the group can
    learn.

    Args:
        packed: the fitted matrix, ternary in groups of 32.
        rows: the source's, float32 ``[N, K]``.
    """
    n, columns = packed.shape
    more = -columns % GROUP
    integers = np.pad(block_layout(FORMAT).integers(packed), ((0, 0), (0, more)))
    wide = np.pad(rows, ((0, 0), (0, more))).reshape(n, -1, GROUP)
    codes = integers.reshape(n, -1, GROUP).astype(np.float32)
    scales = packed.scales.reshape(n, -1)
    codes *= np.where(scales < 0, np.float32(-1), np.float32(1))[..., None]
    codes[scales == 0] = 0
    scales = np.where(scales == 0, np.abs(wide).mean(axis=-1) + 1e-8, np.abs(scales))
    far = np.clip(wide / scales[..., None] - codes, -REACH, REACH)
    units = (codes + far).reshape(n, -1)
    units[:, columns:] = 0
    return Trained(units.reshape(wide.shape), scales.astype(np.float32), columns)
