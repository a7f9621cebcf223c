"""What an attention command computes, in NumPy: the definition that the hardware is held to.

Softmax attention in one pass over int8 keys and values (online softmax: Milakov and Gimelshein
2018), in whole numbers. A score is a logarithm to the base 2 with ``SCORE_FRACTION`` bits behind
the point, the running maximum M its whole part, so that rescaling by a new maximum is a shift:

    S        = sum over d of q[d] * k[d]                                    31 bits
    s        = floor(S * key mantissa / 2**(exponents)), saturated          SCORE_BITS
    M        = max over visible tokens of floor(s)
    p        = floor(EXP2[fraction of s] * 2**8 / 2**(M - floor(s)))        24 bits
    w        = floor(EXP2[..] * value mantissa / 2**(4 + M - floor(s) + top - value exponent))
    l        = sum of p,   acc[d] = sum of w * v[d], both divided by 2**(rise of M), rounded down,
               before each block of BLOCK_TOKENS tokens
    out[d]   = float32(acc[d] * 2**-8 / 2**n) * float32(2**(top - 15) / (l / 2**n)), n such that
               l / 2**n has 24 bits

Against exact softmax over the same stored keys and values, the error of an output is at most
``error_bound`` times the largest value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay.definition import scale_sums

I8: TypeAlias = NDArray[np.int8]
I64: TypeAlias = NDArray[np.int64]
U16: TypeAlias = NDArray[np.uint16]
F32: TypeAlias = NDArray[np.float32]

BLOCK_TOKENS = 64
SCORE_FRACTION = 11
SCORE_BITS = 21  # signed
LOWEST = -(1 << (SCORE_BITS - 1 - SCORE_FRACTION))  # of the maximum, when nothing was visible
TABLE_BITS = 16
WEIGHT_BITS = 24  # of p and of w
MAX_SHIFT = 63
QUERY_BITS = 16  # signed
MANTISSA_BITS = 12  # of a scale, its leading one included
SCALE_BIAS = 24  # a scale is mantissa / 2**11 * 2**(exponent - SCALE_BIAS)
MAX_EXPONENT = 31  # of a scale; 0 is the scale 0
# From the exponents of query and key to the shift of a score.
SCORE_BIAS = SCALE_BIAS + MANTISSA_BITS - 1 - SCORE_FRACTION
MAX_TOKENS = 1 << 16  # what the sums are wide enough for
LARGEST_QUERY = 2.0 ** (QUERY_BITS - 1 + SCORE_BIAS)
LOG2_E = np.float32(np.log2(np.e))


class OutsideFormatError(ValueError):
    """Queries, scales or a context that the unit's numbers cannot hold."""


@dataclass(frozen=True)
class Queries:
    """Query vectors as whole numbers, and what each of them sees.

    Attributes:
        codes: int16 ``[queries, kv_heads, head_dim]``.
        shifts: ``[queries, kv_heads]``: of a score, before the key's exponent is taken off.
        top: ``[queries, kv_heads]``: no visible value's scale has a larger exponent.
        first: ``[queries]``: the first token that a query sees.
        limit: ``[queries]``: the token behind the last one.
    """

    codes: NDArray[np.int16]
    shifts: I64
    top: I64
    first: I64
    limit: I64


@dataclass(frozen=True)
class Cache:
    """Keys and values of some tokens.

    Attributes:
        keys: int8 ``[tokens, kv_heads, head_dim]``.
        values: as the keys.
        key_scales: encoded by ``encode_scales``, ``[tokens, kv_heads]``.
        value_scales: as those.
    """

    keys: I8
    values: I8
    key_scales: U16
    value_scales: U16


def encode_scales(scales: F32) -> U16:
    """Rounds scales to 12 bits of mantissa: exponent in bits 15 to 11, mantissa below.

    Scales below 2**-23 become 0.

    Raises:
        OutsideFormatError: a scale is negative, not finite, or above 255.
    """
    if not (np.isfinite(scales).all() and (scales >= 0).all()):
        raise OutsideFormatError("scales of keys and values must be finite and not negative")
    fractions, exponents = np.frexp(scales.astype(np.float64))
    mantissas = np.rint(fractions * (1 << MANTISSA_BITS)).astype(np.int64)
    carry = mantissas >> MANTISSA_BITS
    mantissas >>= carry
    codes = exponents.astype(np.int64) - 1 + carry + SCALE_BIAS
    if (codes > MAX_EXPONENT).any():
        raise OutsideFormatError(f"a scale is {scales.max():g}; this format ends at 255")
    hidden = 1 << (MANTISSA_BITS - 1)
    encoded = codes << (MANTISSA_BITS - 1) | (mantissas - hidden)
    return np.where((scales > 0) & (codes > 0), encoded, 0).astype(np.uint16)


def split_scales(encoded: U16) -> tuple[I64, I64]:
    """Mantissas, 0 or 2048 to 4095, and exponents of encoded scales."""
    exponents = encoded.astype(np.int64) >> (MANTISSA_BITS - 1)
    hidden = 1 << (MANTISSA_BITS - 1)
    mantissas = (encoded.astype(np.int64) & (hidden - 1)) | hidden
    return np.where(exponents > 0, mantissas, 0), exponents


def decode_scales(encoded: U16) -> F32:
    """The scales that encoded ones stand for."""
    mantissas, exponents = split_scales(encoded)
    return np.ldexp(
        mantissas.astype(np.float32), (exponents - SCALE_BIAS - MANTISSA_BITS + 1).astype(np.int32)
    )


def quantise_queries(q: F32, scale: float, first: I64, limit: I64, value_scales: U16) -> Queries:
    """Rounds queries to 16 bits, their scale a power of two.

    Args:
        q: ``[queries, kv_heads, head_dim]``.
        scale: of the scores.
        first: ``[queries]``, the first token that each sees.
        limit: ``[queries]``, the token behind the last that it sees.
        value_scales: encoded, ``[tokens, kv_heads]``, of all tokens from the first.

    Raises:
        OutsideFormatError: a query is not finite, or too large for the format.
    """
    scaled = q.astype(np.float32) * (np.float32(scale) * LOG2_E)
    largest = np.abs(scaled).max(axis=-1)
    if not (largest < LARGEST_QUERY).all():
        raise OutsideFormatError(f"queries must be finite and, scaled, below {LARGEST_QUERY:g}")
    exponents = np.frexp(largest)[1].astype(np.int64)
    # Any value does where all elements are 0; a score's shift ends at MAX_SHIFT anyway.
    powers = np.where(largest > 0, QUERY_BITS - 1 - exponents, 0)
    powers = np.minimum(powers, 2 * MAX_SHIFT - SCORE_BIAS)
    most = (1 << (QUERY_BITS - 1)) - 1
    codes = np.ldexp(scaled.astype(np.float64), powers[..., None].astype(np.int32))
    tops = [value_scales[a:b].max(axis=0, initial=0) for a, b in zip(first, limit, strict=True)]
    return Queries(
        codes=np.clip(np.rint(codes), -most, most).astype(np.int16),
        shifts=powers + SCORE_BIAS,
        top=np.array(tops, np.int64) >> (MANTISSA_BITS - 1),
        first=np.asarray(first, np.int64),
        limit=np.asarray(limit, np.int64),
    )


@cache
def exp2_table() -> I64:
    """``round(2**(15 + i / 2048))``."""
    steps = 1 << SCORE_FRACTION
    table: I64 = np.rint(np.exp2(TABLE_BITS - 1 + np.arange(steps) / steps)).astype(np.int64)
    return table


def attend(queries: Queries, cache: Cache) -> F32:
    """Attention of every query to the tokens that it sees, ``[queries, kv_heads, head_dim]``.

    A query that sees none gives zeros.

    Raises:
        OutsideFormatError: there are more than ``MAX_TOKENS`` tokens.
    """
    count, kv_heads, head_dim = queries.codes.shape
    tokens = len(cache.keys)
    if tokens > MAX_TOKENS:
        raise OutsideFormatError(
            f"{tokens} tokens of context; the unit attends to {MAX_TOKENS} at most"
        )
    peak = np.full((count, kv_heads), LOWEST, np.int64)
    total = np.zeros((count, kv_heads), np.int64)
    acc = np.zeros((count, kv_heads, head_dim), np.int64)
    scores = _scores(queries, cache)
    for start in range(0, tokens, BLOCK_TOKENS):
        block = slice(start, start + BLOCK_TOKENS)
        index = np.arange(tokens)[block]
        seen = (queries.first[:, None] <= index) & (index < queries.limit[:, None])
        visible = np.broadcast_to(seen[:, None, :], (count, kv_heads, len(index)))
        score = scores[..., block]
        whole = score >> SCORE_FRACTION
        highest = np.maximum(peak, np.where(visible, whole, LOWEST).max(axis=-1))
        rise = np.minimum(highest - peak, MAX_SHIFT)
        peak = highest
        p, w = _weights(score, peak, visible, queries.top, cache.value_scales[block])
        total = (total >> rise) + p.sum(axis=-1)
        sums = np.einsum("qht,thd->qhd", w, cache.values[block].astype(np.int64))
        acc = (acc >> rise[..., None]) + sums
    return _divide(acc, total, queries.top)


def _scores(queries: Queries, cache: Cache) -> I64:
    """Fixed-point logarithms ``[queries, kv_heads, tokens]``."""
    # Exact in float64: sums are below 2**31.
    keys = cache.keys.transpose(1, 2, 0).astype(np.float64)
    codes = queries.codes.transpose(1, 0, 2).astype(np.float64)
    sums = (codes @ keys).transpose(1, 0, 2).astype(np.int64)
    mantissas, exponents = split_scales(cache.key_scales)
    shift = np.clip(queries.shifts[..., None] - exponents.T, 0, MAX_SHIFT)
    most = (1 << (SCORE_BITS - 1)) - 1
    scores: I64 = np.clip((sums * mantissas.T) >> shift, -most - 1, most)
    return scores


def _weights(
    score: I64, peak: I64, visible: NDArray[np.bool_], top: I64, value_scales: U16
) -> tuple[I64, I64]:
    """Weights of a block's tokens, and the same times their values' scales."""
    power = exp2_table()[score & ((1 << SCORE_FRACTION) - 1)]
    below = np.minimum(np.where(visible, peak[..., None] - (score >> SCORE_FRACTION), 0), MAX_SHIFT)
    p = (power << (WEIGHT_BITS - TABLE_BITS)) >> below
    mantissas, exponents = split_scales(value_scales)
    shift = TABLE_BITS + MANTISSA_BITS - WEIGHT_BITS + below
    shift = np.minimum(shift + np.maximum(top[..., None] - exponents.T, 0), MAX_SHIFT)
    w = (power * mantissas.T) >> shift
    return np.where(visible, p, 0), np.where(visible, w, 0)


def _divide(acc: I64, total: I64, top: I64) -> F32:
    bits = np.frexp(total.astype(np.float64))[1].astype(np.int64)  # exact: below 2**53
    shift = np.maximum(bits - WEIGHT_BITS, 0)
    divisor = total >> shift
    words = acc >> (shift[..., None] + 8)
    reciprocal = ((1 << 47) - 1) // np.maximum(divisor, 1)
    # The reciprocal's leading one is bit 23, unless nothing was seen, and all words are zero.
    scales = np.ldexp(np.minimum(reciprocal, (1 << 24) - 1) * 1.0, (top - 62).astype(np.int32))
    return scale_sums(words, np.broadcast_to(scales.astype(np.float32)[..., None], words.shape))


def error_bound(largest_score: float) -> float:
    """Most that an output differs from exact softmax, in units of the largest value.

    Args:
        largest_score: magnitude of the largest score, before the softmax and to the base e.
    """
    steps = 2.0**-SCORE_FRACTION / 2  # of a score, to the base 2, besides a common offset
    roundings = largest_score * LOG2_E * (2.0**-MANTISSA_BITS / 2 + 2.0 ** -(QUERY_BITS - 1))
    weights = np.expm1((steps + roundings) * np.log(2))
    # Weights that are off by a share e move the mean by no more than e times the values' range.
    return float(2 * weights + 2.0**-MANTISSA_BITS / 2 + 2.0**-TABLE_BITS * 2 + 2.0**-20)
