"""Cuts rows into blocks that share a scale; what all methods have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat, PackedWeight, pack_bits

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Float = TypeVar("Float", np.float32, np.float64)
_HALF_STEP = 2.0**-11  # what rounding to half precision moves a number by at most


def padded(rows: NDArray[Float], block: int) -> NDArray[Float]:
    """Appends zeros to ``[n, K]`` until K is a multiple of ``block``."""
    missing = -rows.shape[1] % block
    return np.pad(rows, ((0, 0), (0, missing))) if missing else rows


def encode(rows: F32, scales: F32, layout: BlockFormat, block: int) -> PackedWeight:
    """Rounds float32 ``[n, K]`` to the codes of ``layout`` with scales ``[n, ceil(K / block)]``."""
    packed = layout.encode(padded(rows, block), scales, block)
    return replace(packed, shape=(rows.shape[0], rows.shape[1]))


def pack(codes: F64, scales: F64, layout: BlockFormat, block: int, columns: int) -> PackedWeight:
    """Packs integers that were found already.

    Args:
        codes: relative to the zero point, ``[n, blocks * block]``.
        scales: ``[n, blocks]``.
        layout: format of the codes.
        block: weights that share a scale.
        columns: K; codes behind it are zero.
    """
    n = len(codes)
    shifted = (codes + 2 ** (layout.bits - 1)).astype(np.uint8).reshape(n, -1, block)
    return PackedWeight(
        layout.name,
        (n, columns),
        block,
        pack_bits(shifted, layout.bits),
        scales.astype(np.float32),
    )


def slab(packed: PackedWeight, rows: slice) -> PackedWeight:
    """Some rows of a packed matrix."""
    codes = packed.codes[rows]
    zeros = None if packed.zeros is None else packed.zeros[rows]
    return replace(
        packed,
        shape=(len(codes), packed.shape[1]),
        codes=codes,
        scales=packed.scales[rows],
        zeros=zeros,
    )


def halved(packed: PackedWeight) -> PackedWeight:
    """The same codes with scales that half precision holds, unless it is too narrow for some."""
    with np.errstate(over="ignore"):
        rounded = packed.scales.astype(np.float16).astype(np.float32)
    is_close = np.abs(rounded - packed.scales) <= np.abs(packed.scales) * np.float32(_HALF_STEP)
    return replace(packed, scales=rounded) if is_close.all() else packed
