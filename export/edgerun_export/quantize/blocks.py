"""Cuts rows into blocks that share a scale; what all methods have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat, PackedWeight, pack_bits, pack_zero_points

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Float = TypeVar("Float", np.float32, np.float64)
Number = TypeVar("Number", bound=np.generic)
_HALF_STEP = 2.0**-11  # what rounding to half precision moves a number by at most


@dataclass(frozen=True, slots=True)
class Grid(Generic[Float]):
    """The values that the codes of each block stand for, in steps of its scale.

    Attributes:
        scales: of either sign, ``[n, blocks]``.
        shifts: what integers ``code - zero`` are above codes relative to the middle,
            ``[n, blocks]``; None where all zero points are the middle.
    """

    scales: NDArray[Float]
    shifts: NDArray[Float] | None = None

    def centred(self, target: NDArray[Float]) -> NDArray[Float]:
        """Weights ``[n, K]`` less what the middle of the codes stands for."""
        if self.shifts is None:
            return target
        width = target.shape[1] // self.scales.shape[1]
        return target - np.repeat(self.scales * self.shifts, width, axis=1)

    def integers(self, codes: NDArray[Float]) -> NDArray[Float]:
        """What scales multiply, of codes relative to the middle, ``[n, K]``."""
        if self.shifts is None:
            return codes
        return codes + np.repeat(self.shifts, codes.shape[1] // self.shifts.shape[1], axis=1)

    def points(self, bits: int) -> NDArray[np.uint8] | None:
        """Zero points ``[n, blocks]``."""
        if self.shifts is None:
            return None
        points: NDArray[np.uint8] = (2 ** (bits - 1) - self.shifts).astype(np.uint8)
        return points


def padded(rows: NDArray[Number], block: int) -> NDArray[Number]:
    """Appends zeros to ``[n, K]`` until K is a multiple of ``block``."""
    missing = -rows.shape[1] % block
    return np.pad(rows, ((0, 0), (0, missing))) if missing else rows


def encode(rows: F32, grid: Grid[np.float32], layout: BlockFormat, block: int) -> PackedWeight:
    """Rounds float32 ``[n, K]`` to the codes of ``layout`` on a grid of ``ceil(K / block)``."""
    packed = layout.encode(padded(rows, block), grid.scales, block, grid.points(layout.bits))
    return replace(packed, shape=(rows.shape[0], rows.shape[1]))


def pack(
    codes: F64, grid: Grid[np.float64], layout: BlockFormat, block: int, columns: int
) -> PackedWeight:
    """Packs integers that were found already.

    Args:
        codes: relative to the middle, ``[n, blocks * block]``.
        grid: what they stand for, of ``[n, blocks]``.
        layout: format of the codes.
        block: weights that share a scale.
        columns: K; codes behind it are zero.
    """
    n = len(codes)
    shifted = (codes + 2 ** (layout.bits - 1)).astype(np.uint8).reshape(n, -1, block)
    points = grid.points(layout.bits)
    return PackedWeight(
        layout.stored_as,
        (n, columns),
        block,
        pack_bits(shifted, layout.bits),
        grid.scales.astype(np.float32),
        None if points is None else pack_zero_points(points, layout.bits),
    )


def slab(packed: PackedWeight, rows: slice) -> PackedWeight:
    """Some rows of a packed matrix."""
    codes = packed.codes[rows]
    zeros = None if packed.zeros is None else packed.zeros[rows]
    offsets = None if packed.offsets is None else packed.offsets[:, rows]
    return replace(
        packed,
        shape=(len(codes), packed.shape[1]),
        codes=codes,
        scales=packed.scales[rows],
        zeros=zeros,
        offsets=offsets,
    )


def joined(slabs: Sequence[PackedWeight]) -> PackedWeight:
    """The matrix of which these are the rows, one after the other."""
    first = slabs[0]
    if len(slabs) == 1:
        return first
    zeros = [each.zeros for each in slabs if each.zeros is not None]
    offsets = [each.offsets for each in slabs if each.offsets is not None]
    return replace(
        first,
        shape=(sum(each.shape[0] for each in slabs), first.shape[1]),
        codes=np.concatenate([each.codes for each in slabs]),
        scales=np.concatenate([each.scales for each in slabs]),
        zeros=np.concatenate(zeros) if zeros else None,
        offsets=np.concatenate(offsets, axis=1) if offsets else None,
    )


def are_halves(scales: F32) -> bool:
    """Whether half precision holds all scales exactly."""
    with np.errstate(over="ignore"):
        return bool((scales.astype(np.float16) == scales).all())


def halved(packed: PackedWeight) -> PackedWeight:
    """The same codes with scales that half precision holds, unless it is too narrow for them.

    Small scales lose bits there, and may be zero: none is moved by more than the largest may be.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = packed.scales.astype(np.float16).astype(np.float32)
        moved = np.abs(rounded - packed.scales).max(initial=0)
    is_close = moved <= np.abs(packed.scales).max(initial=0) * np.float32(_HALF_STEP)
    return replace(packed, scales=rounded) if is_close else packed
