"""A screen of an output head: half of its bytes, which find the largest logit with proof.

A head's int8 weights take two codes each on the overlay, whose tables hold multiples up to 13. The
screen is the same matrix ``W`` with one code a weight: ``V = scale * code``, code from -13 to 13,
one scale a row. It multiplies activations ``y``, rounded with one scale, where the head multiplies
``x``, rounded by block. What a logit may be at most follows from Cauchy and Schwarz::

    W[n] @ x  =  V[n] @ y  +  (W[n] - V[n]) @ x  +  V[n] @ (x - y)
              <= V[n] @ y  +  |W[n] - V[n]| * |x|  +  |V[n]| * |x - y|

So rows whose bound is below a logit that is known need not be multiplied exactly: none of them is
the largest, nor equal to it.

Penalties change some logits before the largest is taken (``Adjustment``): one that is positive is
divided by a divisor, another one multiplied by it, then an amount is subtracted. Divisors are above
0, so each of these steps keeps the order of two numbers, and so does rounding to float32. Hence
from ``logit <= bound`` follow ``logit <= float32(bound)``, for a logit is a float32 number, and
``adjusted(logit) <= adjusted(float32(bound))``, with the row's own divisor and amount on both
sides. A row whose adjusted bound is below an adjusted logit that is known is neither the largest of
the adjusted logits nor equal to it: the same proof with other numbers. Without penalties divisors
are 1 and amounts 0.

``leading`` is the definition of the native code that does so
(``native/rescore.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import PackedWeight
from edgerun.state import Adjustment
from edgerun_hw.backend.matrix import integers_of
from edgerun_hw.overlay.register_map import MAX_MAGNITUDE

F32: TypeAlias = NDArray[np.float32]
F64: TypeAlias = NDArray[np.float64]
CHUNK_WEIGHTS = 1 << 18  # a few arrays of them stay in a processor's cache
# Of a row's largest weight, what the largest code stands for; the best of them is taken.
CLIPS = (1.0, 0.9, 0.8, 0.7)
# A logit is a float32 sum of a product a block: in units of its last place, relative to the norms'
# product, far below this. It also covers the float32 arithmetic of the screen's own products, and
# that of its errors.
SLACK = 2.0**-16


@dataclass(frozen=True)
class Screen:
    """A head with one code a weight.

    Attributes:
        weight: codes and scales, ``[N, K]`` with one scale a row.
        levels: magnitude of the largest code.
        errors: float32 ``[N]``, ``|W[n] - V[n]|``, and for the slack a part of ``|W[n]|``.
        norms: float32 ``[N]``, ``|V[n]|``, with a part of itself. Both are rounded up.
    """

    weight: PackedWeight
    levels: int
    errors: F32
    norms: F32


def make_screen(weight: PackedWeight, levels: int = MAX_MAGNITUDE) -> Screen:
    """Makes the screen of a head.

    Args:
        weight: int8, ``[N, K]``.
        levels: magnitude of the largest code, 1 to 13.
    """
    n, k = weight.shape
    codes, scales = np.empty((n, k), np.uint8), np.empty((n, 1), np.float32)
    errors, norms = np.empty(n), np.empty(n)
    step = max(1, CHUNK_WEIGHTS // k)
    for first in range(0, n, step):
        rows = slice(first, min(n, first + step))
        exact = values_of(weight, rows.start, rows.stop)
        rounded, scale = _rounded(exact, levels)
        screened = rounded * scale
        codes[rows] = (rounded + 128).astype(np.uint8)
        scales[rows] = scale
        errors[rows] = _norms(exact - screened) + SLACK * _norms(exact)
        norms[rows] = _norms(screened) * (1 + SLACK)
    packed = PackedWeight("int8", (n, k), k, codes.reshape(n, 1, k), scales)
    return Screen(packed, levels, _rounded_up(errors), _rounded_up(norms))


def _rounded_up(values: F64) -> F32:
    above: F32 = np.nextafter(values.astype(np.float32), np.float32(np.inf))
    return above


def _norms(rows: F32) -> F64:
    norms: F64 = np.sqrt(np.einsum("nk,nk->n", rows, rows, dtype=np.float64))
    return norms


def _rounded(exact: F32, levels: int) -> tuple[F32, F32]:
    """Codes ``[rows, K]`` and scales ``[rows, 1]``: of ``CLIPS`` what is nearest in each row."""
    largest = np.maximum(np.abs(exact).max(axis=1, keepdims=True), np.float32(1e-30))
    best, scales = np.zeros_like(exact), np.zeros_like(largest)
    nearest = np.full(len(exact), np.inf)
    for clip in CLIPS:
        scale = largest * np.float32(clip / levels)
        codes = np.clip(np.rint(exact / scale), -levels, levels)
        error = exact - codes * scale
        distance = np.einsum("nk,nk->n", error, error)
        better = distance < nearest
        best[better], scales[better] = codes[better], scale[better]
        nearest[better] = distance[better]
    return best, scales


def values_of(weight: PackedWeight, first: int, last: int) -> F32:
    """Weights of some rows as they count, float32 ``[last - first, K]``."""
    scales = np.repeat(weight.scales[first:last], weight.block, axis=1)[:, : weight.shape[1]]
    values: F32 = integers_of(weight, first, last).astype(np.float32) * scales
    return values


def adjusted(logits: F32, divisors: F32, amounts: F32) -> F32:
    """What is compared of logits ``[N]`` of which all have a divisor and an amount."""
    with np.errstate(all="ignore"):
        return np.where(logits > 0, logits / divisors, logits * divisors) - amounts


def leading(
    screen: Screen,
    screened: F32,
    x: F64,
    y: F64,
    logits: F32,
    adjustment: Adjustment | None = None,
) -> NDArray[np.bool_]:
    """Which rows must be multiplied exactly, so that the largest logit is among them.

    Args:
        screen: of the head.
        screened: float32 ``[N]``, the screen's products.
        x: float64 ``[K]``, activations as the head sees them.
        y: float64 ``[K]``, activations as the screen sees them.
        logits: float32 ``[N]``, the exact ones; only those of rows that are returned are looked at.
        adjustment: what is done to some logits before the largest is taken.

    Returns:
        bool ``[N]``: the row with the largest adjusted product, and in turn all whose adjusted
        bound is not below the largest adjusted logit so far: what is no number is below none.
    """
    divisors, amounts = np.ones_like(screened), np.zeros_like(screened)
    if adjustment is not None:
        divisors[adjustment.ids], amounts[adjustment.ids] = adjustment.divisors, adjustment.amounts
    bounds = screened + screen.errors * np.sqrt(x @ x) + screen.norms * np.sqrt((x - y) @ (x - y))
    bounds = adjusted(bounds.astype(np.float32), divisors, amounts)
    exact = adjusted(logits, divisors, amounts)
    chosen = np.zeros(len(bounds), bool)
    first = int(adjusted(screened, divisors, amounts).argmax())
    chosen[first], best = True, exact[first]
    for n in np.flatnonzero(~(bounds < best)):
        if not bounds[n] < best:
            chosen[n] = True
            best = max(best, exact[n])
    return chosen
