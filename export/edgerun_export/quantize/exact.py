"""Weights that are integers times scales already: packed as they are, nothing rounded."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import UnsupportedError
from edgerun.formats.base import BlockFormat, PackedWeight, pack_bits

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]


def fits(values: I8, scales: F32, layout: BlockFormat, block: int) -> bool:
    """Whether blocks of ``layout`` can hold integers ``[n, K]`` and scales ``[n, g]`` unchanged."""
    covered = values.shape[1] // scales.shape[1]
    return bool(
        (scales.shape[1] == 1 or covered % block == 0)
        and values.min() >= layout.low
        and values.max() <= layout.high
    )


def encode_integers(values: I8, scales: F32, layout: BlockFormat, block: int) -> PackedWeight:
    """Packs integers ``[n, K]`` with scales ``[n, g]``, one for each ``K / g`` of them.

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
    codes = np.pad(values, ((0, 0), (0, -columns % block))).astype(np.int16)
    shifted = (codes + 2 ** (layout.bits - 1)).astype(np.uint8)
    blocks = shifted.shape[1] // block
    return PackedWeight(
        layout.name,
        (n, columns),
        block,
        pack_bits(shifted.reshape(n, blocks, block), layout.bits),
        np.repeat(scales, blocks // scales.shape[1], axis=1).astype(np.float32),
    )
