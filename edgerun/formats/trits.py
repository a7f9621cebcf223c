"""Trits: ternary weights at 1.6 bits, five to a byte; the definition of the bit layout.

Five ternary digits 0, 1, 2 (weights -1, 0, 1) are the number ``v`` from 0 to 242 whose first
digit counts most. Stored is not ``v`` but ``ceil(v * 256 / 243)``: the byte, read as a binary
fraction, is then ``v / 243`` rounded up, and a digit is what a multiplication by 3 carries out
of the byte; the rest is the fraction of the digits that follow. The rounding is too small to
change a digit. llama.cpp stores its TQ1_0 so.

Here digit p of byte j of a tile of ``lanes`` bytes is weight ``j + p * lanes``: unpacking gives
runs of ``lanes`` consecutive weights. Kernels give each row such tiles of four bytes, those of as
many rows as a vector has dwords side by side (``kernels/layouts/trits.py``). Bundles never hold
trits: they are made from two-bit codes while a model is loaded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DIGITS = 5
BASE = 3
STATES = BASE**DIGITS
FAMILY_BITS = 1.6  # names the kernels in the machine profile


def pack_trits(digits: NDArray[np.uint8], lanes: int) -> NDArray[np.uint8]:
    """Packs digits 0, 1, 2 ``[..., K]`` into bytes ``[..., ceil(K / (5 * lanes)), lanes]``.

    The last tile is filled up with digit 0.

    Example:
        >>> pack_trits(np.array([2, 1, 0, 0, 1], np.uint8), lanes=1)  # v = 190
        array([[201]], dtype=uint8)
    """
    tile = DIGITS * lanes
    missing = -digits.shape[-1] % tile
    whole = np.pad(digits, [(0, 0)] * (digits.ndim - 1) + [(0, missing)])
    planes = whole.reshape(*digits.shape[:-1], -1, DIGITS, lanes)
    weights = BASE ** np.arange(DIGITS - 1, -1, -1)
    values = np.einsum("...pj,p->...j", planes.astype(np.int64), weights)
    packed: NDArray[np.uint8] = (-(-values * 256 // STATES)).astype(np.uint8)
    return packed


def unpack_trits(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Inverse of ``pack_trits``: bytes ``[..., tiles, lanes]`` to digits ``[..., 5 * all]``.

    Example:
        >>> unpack_trits(np.array([[201]], np.uint8))
        array([2, 1, 0, 0, 1], dtype=uint8)
    """
    rest = packed.astype(np.uint16)
    planes = []
    for _ in range(DIGITS):
        tripled = rest * np.uint16(BASE)
        planes.append((tripled >> 8).astype(np.uint8))
        rest = tripled & np.uint16(0xFF)
    digits = np.stack(planes, axis=-2)
    return digits.reshape(*packed.shape[:-2], -1)
