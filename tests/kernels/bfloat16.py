"""bfloat16 and its products in NumPy, as Intel's manual defines ``tdpbf16ps`` and ``vdpbf16ps``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
SMALLEST_NORMAL = np.float32(2.0**-126)


def to_bfloat16(x: F32) -> NDArray[np.uint16]:
    """Bits of float32 rounded to nearest, ties to even; NaN is quiet."""
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)


def from_bfloat16(bits: NDArray[np.uint16]) -> F32:
    """The float32 that such bits stand for."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def flushed(x: Any) -> F32:
    """Zeros, with their sign, in place of subnormal numbers."""
    values = np.asarray(x, np.float32)
    return np.where(np.abs(values) < SMALLEST_NORMAL, np.copysign(np.float32(0), values), values)


def tdpbf16ps(sums: F32, x: NDArray[np.uint16], codes: NDArray[np.uint16]) -> F32:
    """``sums`` plus products of tiles.

    Args:
        sums: ``[M, N]``.
        x: bits, ``[M, 2 * K]``.
        codes: bits, ``[K, N, 2]``.

    Products of two bfloat16 are exact in float32 unless they are subnormal, so that rounding
    after each addition is that of a fused one.
    """
    halves = np.zeros((2, *sums.shape), np.float32)
    left, right = flushed(from_bfloat16(x)), flushed(from_bfloat16(codes))
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for step in range(len(codes)):
            for part in range(2):
                exact = np.outer(
                    left[:, 2 * step + part].astype(np.float64), right[step, :, part]
                )  # of 16 bits, and so is the sum below but for its last rounding
                halves[part] = flushed((halves[part] + exact).astype(np.float32))
        return flushed(flushed(sums) + flushed(halves[0] + halves[1]))


def vdpbf16ps(sums: F32, left: NDArray[np.uint16], right: NDArray[np.uint16]) -> F32:
    """``sums`` plus products of pairs, ``[N, 2]`` bits; the upper ones first.

    Each is added with one rounding: products have 16 bits, so that float64 holds the sum before it,
    but where one is so small beside the other that it could only decide a tie.
    """
    total = flushed(sums)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for part in (1, 0):
            x, y = (flushed(from_bfloat16(bits[..., part])) for bits in (left, right))
            total = flushed((total + x.astype(np.float64) * y).astype(np.float32))
    return total
