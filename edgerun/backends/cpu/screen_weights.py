"""The weights of a screened head, and the bound that makes it exact.

The head is ``e = W x`` with int8 weights; x is what the head sees, rounded to int8. The screen
keeps a coarse copy ``Q`` with int4 codes, directions ``P`` (rows orthonormal, ``[m, K]``) in which
hidden states have most of their length, and int8 coefficients ``C = (W - Q) P^T``. It computes

    s = Q x + C z,   z = P x

and what is missing is ``R x`` with ``R = W - Q - C P``, whose rows are nearly orthogonal to P. By
the inequality of Cauchy and Schwarz, for a row r of R and any positive ``a`` and ``b``,

    |r x| <= |(r_off, a r_along)| * |(x_off, x_along / a)|

where ``along`` is the part in the span of P and ``off`` the rest. Rounding z to int8 adds
``|c| |dz|``, put into the same product with the factor b. Floating-point errors of both heads are
at most ``rounding * |x|``. So ``|e_n - s_n| <= spread_n * reach(x) + rounding * |x|``: one number a
row, one a state. The bound holds for any P; a P that fits the states makes it small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import PackedWeight, pack_bits

F32 = NDArray[np.float32]

DIRECTIONS = 64
MIN_BLOCKS = 8  # of K, for directions to be worth their coefficients
ALONG_FACTOR = 16.0  # a: hidden states lie mostly along P, residual rows hardly
DETAIL_FACTOR = 0.5  # b
MARGIN = 1.001  # covers the rounding of the bound itself, which is below 1e-4
EPSILON = 2.0**-22  # four units of float32 rounding
SLAB_ELEMENTS = 1 << 22


@dataclass(frozen=True, slots=True)
class Bound:
    """How far the scores of a screen may be from the head's values.

    Attributes:
        directions: float32 ``[m, K]``, P.
        spread: float32 ``[N]``, length of each residual row.
        rounding: floating-point error of a score for a state of length 1.
    """

    directions: F32
    spread: F32
    rounding: float

    def project(self, x: F32) -> tuple[F32, float, float]:
        """Returns ``z``, ``reach(x)`` and the error that rounding may cause, for a state ``[K]``.

        The numbers are infinite or NaN if the state's are.
        """
        z = self.directions @ x
        length2 = float(np.dot(x, x.astype(np.float64)))
        along2 = float(np.dot(z, z.astype(np.float64)))
        # What is off P is a difference, so the error of z counts.
        off2 = max(length2 - along2, 0.0) + 8 * len(x) * 2.0**-24 * length2
        steps = float(np.abs(z).max(initial=0)) / 254 * 1.01  # of rounding z to int8
        lost2 = len(z) * steps * steps
        reach2 = off2 + along2 / ALONG_FACTOR**2 + lost2 / DETAIL_FACTOR**2
        return z, reach2**0.5 * MARGIN, self.rounding * length2**0.5


@dataclass(frozen=True, slots=True)
class Screen:
    """A coarse head and its bound.

    Attributes:
        coarse: int4 ``[N, K]``, Q.
        detail: int8 ``[N, m]``, C; None without directions.
        bound: of the scores that they give.
    """

    coarse: PackedWeight
    detail: PackedWeight | None
    bound: Bound


def useful_directions(head: PackedWeight) -> int:
    """How many directions a screen of this head should keep."""
    return DIRECTIONS if head.blocks >= MIN_BLOCKS else 0


def make_screen(head: PackedWeight, states: F32, directions: int = DIRECTIONS) -> Screen:
    """Builds the screen of a head.

    Args:
        head: int8 with one zero point, ``[N, K]``, K a multiple of its block.
        states: hidden states as the head sees them, float32 ``[s, K]``; they choose the
            directions and have no influence on what is proved.
        directions: how many to keep, a power of two from 16, or 0.
    """
    n, k = head.shape
    basis = _principal(states, directions) if directions else np.zeros((0, k), np.float32)
    slab = max(1, SLAB_ELEMENTS // k)
    parts = [_rows(head, basis, start, start + slab) for start in range(0, n, slab)]
    codes, scales, coefficients, steps, spread, sizes = map(
        np.concatenate, zip(*parts, strict=True)
    )
    coarse = PackedWeight("int4", (n, k), head.block, codes, scales)
    detail = None
    if directions:
        detail = PackedWeight("int8", (n, directions), directions, coefficients, steps)
    rounding = (k / head.block + 64) * EPSILON * float(sizes.max())
    return Screen(coarse, detail, Bound(basis, spread, rounding))


def dequantised(head: PackedWeight, start: int = 0, stop: int | None = None) -> F32:
    """Rows of an int8 weight as float32 ``[rows, K]``."""
    codes = head.codes[start:stop].astype(np.float32) - np.float32(128)
    values: F32 = codes * head.scales[start:stop, :, None]
    return values.reshape(len(codes), -1)


def _principal(states: F32, count: int) -> F32:
    """The directions that hold most of the states' squared lengths, float32 ``[count, K]``."""
    x = states.astype(np.float64)
    if len(x) < x.shape[1]:
        _, vectors = np.linalg.eigh(x @ x.T)
        found = (x.T @ vectors[:, -count:]).T
    else:
        _, vectors = np.linalg.eigh(x.T @ x)
        found = vectors[:, -count:].T
    # Fewer states than directions leave some to chance; any orthonormal rows will do.
    missing = max(0, count - len(found))
    filler = np.random.default_rng(0).standard_normal((missing, x.shape[1]))
    basis, _ = np.linalg.qr(np.concatenate([found[::-1], filler]).T)
    return np.ascontiguousarray(basis.T, np.float32)


def _rows(head: PackedWeight, basis: F32, start: int, stop: int) -> tuple[NDArray[np.generic], ...]:
    """Codes and scales of Q, codes and scales of C, spread and size, for some rows."""
    w = dequantised(head, start, stop)
    blocks = w.reshape(len(w), -1, head.block)
    scales = np.abs(blocks).max(axis=2) / np.float32(7.5)
    safe = np.where(scales > 0, scales, np.float32(1))[..., None]
    integers = np.clip(np.rint(blocks / safe), -8, 7)
    rest = (blocks - integers * scales[..., None]).reshape(w.shape)
    c = rest @ basis.T
    steps = np.abs(c).max(axis=1, keepdims=True, initial=0) / np.float32(127)
    whole = np.rint(c / np.where(steps > 0, steps, np.float32(1)))
    rest -= (whole * steps) @ basis
    along2 = np.square(rest @ basis.T, dtype=np.float64).sum(axis=1)
    off2 = np.maximum(np.square(rest, dtype=np.float64).sum(axis=1) - along2, 0)
    c2 = np.square(c, dtype=np.float64).sum(axis=1)
    spread = np.sqrt(off2 + along2 * ALONG_FACTOR**2 + c2 * DETAIL_FACTOR**2) * MARGIN
    # Magnitudes that the kernels add up: unsigned int4 codes, and int8 weights.
    coarse2 = np.square(scales, dtype=np.float64).sum(axis=1) * head.block * 16**2
    sizes = np.sqrt(coarse2) + np.sqrt(np.square(w, dtype=np.float64).sum(axis=1)) + np.sqrt(c2)
    codes = pack_bits((integers + 8).astype(np.uint8), 4)
    coefficients = (whole + 128).astype(np.uint8)[:, None, :]
    return codes, scales, coefficients, steps, spread.astype(np.float32), sizes
