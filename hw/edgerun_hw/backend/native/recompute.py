"""One head of one query by the definition, in native code: to compare a result of the unit with.

``overlay/attention.py`` has the definition; this is it for one head, from the cache's pages, with
the same bits. The processor computes it while the unit works.
"""

from __future__ import annotations

from math import frexp, ldexp
from typing import Any

import numpy as np
from numba import carray, njit

from edgerun_hw.backend.native.attention_words import (
    HEAD_DIM,
    KEY_DATA,
    KEY_SCALES,
    PAGE_HEADS,
    PAGE_TABLE,
    PAGES,
    VALUE_DATA,
    VALUE_SCALES,
)
from edgerun_hw.backend.native.request import floats, pointer
from edgerun_hw.backend.native.sequence_copy import C_SEQUENCE
from edgerun_hw.backend.native.write_rows import encoded
from edgerun_hw.overlay.attention import (
    BLOCK_TOKENS,
    LOWEST,
    MANTISSA_BITS,
    MAX_SHIFT,
    SCORE_BITS,
    SCORE_FRACTION,
    TABLE_BITS,
    WEIGHT_BITS,
    exp2_table,
)

EXP2 = exp2_table()
STEPS = 1 << SCORE_FRACTION
LARGEST_SCORE = (1 << (SCORE_BITS - 1)) - 1
HIDDEN = 1 << (MANTISSA_BITS - 1)
SMALLEST_NORMAL = 2.0**-126


@njit
def _mantissa(scale: int) -> Any:
    return scale & (HIDDEN - 1) | HIDDEN if scale >> (MANTISSA_BITS - 1) else 0


@njit
def _scores(args: Any, slot: int, count: int, codes: Any, shift: int, scores: Any) -> None:
    """Fixed-point logarithms of a page's first tokens."""
    dim = args[HEAD_DIM]
    keys = carray(pointer(args[KEY_DATA] + slot * dim), count * dim, np.int8)
    scales = floats(args[KEY_SCALES], slot, count)
    for token in range(count):
        total = np.int32(0)
        for d in range(dim):
            total += np.int32(codes[d]) * np.int32(keys[token * dim + d])
        scale = encoded(scales[token])
        down = min(max(shift - (scale >> (MANTISSA_BITS - 1)), 0), MAX_SHIFT)
        score = (np.int64(total) * _mantissa(scale)) >> down
        scores[token] = min(max(score, -LARGEST_SCORE - 1), LARGEST_SCORE)


@njit
def _add_values(args: Any, slot: int, token: int, weight: int, sums: Any) -> None:
    dim = args[HEAD_DIM]
    values = carray(pointer(args[VALUE_DATA] + (slot + token) * dim), dim, np.int8)
    for d in range(dim):
        sums[d] += weight * np.int64(values[d])


@njit
def _divide(sums: Any, total: int, top: int, out: Any) -> None:
    """Sums over the sum of weights, float32."""
    shift = max(frexp(np.float64(total))[1] - WEIGHT_BITS, 0)
    reciprocal = ((1 << 47) - 1) // max(total >> shift, 1)
    scale = np.float64(np.float32(ldexp(np.float64(min(reciprocal, (1 << 24) - 1)), top - 62)))
    if scale < SMALLEST_NORMAL:
        scale = np.float64(0)
    for d in range(len(out)):
        product = np.float64(sums[d] >> (shift + 8)) * scale
        out[d] = np.float32(product) if abs(product) >= SMALLEST_NORMAL else np.float32(0)


@njit
def recompute(
    args: Any, copy: Any, head: int, codes: Any, header: Any, first: int, limit: int, out: Any
) -> None:
    """Attention of one query to the tokens from ``first`` to ``limit - 1``.

    Args:
        args: argument block of the layer.
        copy: words of the sequence's copy, of which only the slot counts.
        head: of the keys and values.
        codes: of the query, int16 ``[head_dim]``.
        header: bytes of the packed query: its shift and top exponent are read.
        first: the first token.
        limit: the one behind the last.
        out: float32 ``[head_dim]``, written.
    """
    shift, top = np.int64(header[0]), np.int64(header[1])
    table = args[PAGE_TABLE] + 4 * copy[C_SEQUENCE] * args[PAGES]
    peak: Any = np.int64(LOWEST)
    total: Any = np.int64(0)
    sums, scores = np.zeros(len(out), np.int64), np.empty(BLOCK_TOKENS, np.int64)
    for block in range(first // BLOCK_TOKENS, -(-limit // BLOCK_TOKENS)):
        start = block * BLOCK_TOKENS
        begin, end = max(first - start, 0), min(limit - start, BLOCK_TOKENS)
        page = np.int64(carray(pointer(table), block + 1, np.int32)[block])
        slot = (page * args[PAGE_HEADS] + head) * BLOCK_TOKENS
        _scores(args, slot, end, codes, shift, scores)
        highest: Any = peak
        for token in range(begin, end):
            highest = max(highest, scores[token] >> SCORE_FRACTION)
        rise = min(highest - peak, MAX_SHIFT)
        peak, total = highest, total >> rise
        for d in range(len(sums)):
            sums[d] >>= rise
        value_scales = floats(args[VALUE_SCALES], slot, end)
        for token in range(begin, end):
            power = EXP2[scores[token] & (STEPS - 1)]
            below = min(peak - (scores[token] >> SCORE_FRACTION), MAX_SHIFT)
            total += (power << (WEIGHT_BITS - TABLE_BITS)) >> below
            scale = encoded(value_scales[token])
            down = TABLE_BITS + MANTISSA_BITS - WEIGHT_BITS + below
            down += max(top - (scale >> (MANTISSA_BITS - 1)), 0)
            weight = (power * _mantissa(scale)) >> min(down, MAX_SHIFT)
            _add_values(args, slot, token, weight, sums)
    _divide(sums, total, top, out)
