"""Weights that are integers times scales already: packed as they are, nothing rounded."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import UnsupportedError
from edgerun.formats.base import BlockFormat, PackedWeight, pack_bits, pack_zero_points
from edgerun_export.checkpoint.base import Affine, Integers
from edgerun_export.quantize.blocks import are_halves, padded

F32 = NDArray[np.float32]


def fits(values: Integers, scales: F32, layout: BlockFormat, block: int) -> bool:
    """Whether blocks of ``layout`` can hold integers ``[n, K]`` and scales ``[n, g]`` unchanged."""
    covered = values.shape[1] // scales.shape[1]
    if scales.shape[1] > 1 and covered % block:
        return False
    if layout.has_offsets and not are_halves(scales):
        return False
    if layout.has_zeros:
        least, greatest = _extremes(values, block)
        return bool((greatest - least).max() <= layout.high - layout.low)
    lowest = layout.low if layout.lowest is None else layout.lowest
    return bool(values.min() >= lowest and values.max() <= layout.high)


def _extremes(values: Integers, block: int) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """The least and the greatest integer of each block and 0, ``[n, blocks]``."""
    blocks = padded(values, block).astype(np.int16).reshape(len(values), -1, block)
    return blocks.min(axis=-1, initial=0), blocks.max(axis=-1, initial=0)


def _zero_points(values: Integers, layout: BlockFormat, block: int) -> NDArray[np.uint8]:
    """The zero points nearest the middle with which codes hold integers, ``[n, blocks]``."""
    least, greatest = _extremes(values, block)
    middle, most = 2 ** (layout.bits - 1), layout.high - layout.low
    points: NDArray[np.uint8] = np.clip(middle, -least, most - greatest).astype(np.uint8)
    return points


def encode_affine(stored: Affine, layout: BlockFormat, block: int) -> PackedWeight | None:
    """Packs integers with scales and offsets; None where ``layout`` cannot hold them in its blocks.

    Scales and offsets are rounded to half precision. That moves a weight by 1/2048 of what its
    integer and of what the offset stands for at most, as long as half precision is wide enough.
    """
    values, (n, columns) = stored.values, stored.values.shape
    covered = columns // stored.scales.shape[1]
    if covered % block or values.min() < layout.low or values.max() > layout.high:
        return None
    codes = (values.astype(np.int16) + (1 << (layout.bits - 1))).astype(np.uint8)
    with np.errstate(over="ignore"):
        scales, offsets = (
            np.repeat(each, covered // block, axis=1).astype(np.float16)
            for each in (stored.scales, stored.offsets)
        )
    return PackedWeight(
        layout.stored_as,
        (n, columns),
        block,
        pack_bits(codes.reshape(n, -1, block), layout.bits),
        scales.astype(np.float32),
        offsets=np.ascontiguousarray(offsets.T),
    )


def encode_integers(values: Integers, scales: F32, layout: BlockFormat, block: int) -> PackedWeight:
    """Packs integers ``[n, K]`` with scales ``[n, g]``, one for each ``K / g`` of them.

    Where blocks have zero points, they are those nearest the middle with which codes hold all;
    where they have offsets, those are 0.

    Raises:
        UnsupportedError: a stored scale covers fewer values than ``block``.
    """
    n, columns = values.shape
    covered = columns // scales.shape[1]
    if scales.shape[1] > 1 and covered % block:
        raise UnsupportedError(
            f"the checkpoint has a scale for every {covered} {layout.name} weights; "
            f"--group-size must divide {covered}, not be {block}"
        )
    codes = padded(values, block).astype(np.int16).reshape(n, -1, block)
    blocks = codes.shape[1]
    points = np.full((n, blocks), 2 ** (layout.bits - 1), np.uint8)
    if layout.has_zeros:
        points = _zero_points(values, layout, block)
    shifted = (codes + points[..., None]).astype(np.uint8)
    return PackedWeight(
        layout.stored_as,
        (n, columns),
        block,
        pack_bits(shifted, layout.bits),
        np.repeat(scales, blocks // scales.shape[1], axis=1).astype(np.float32),
        pack_zero_points(points, layout.bits) if layout.has_zeros else None,
        np.zeros((blocks, n), np.float16) if layout.has_offsets else None,
    )
