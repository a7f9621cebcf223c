"""An instruction that multiplies exactly what a screen cannot exclude; see ``backend/screen.py``.

Products are those of ``multiply.py`` for a head with a scale a block, in the same order of float32
operations, so that a logit has the bits that the whole head would give it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from edgerun_hw.backend.native.request import (
    FINE,
    S_STATUS,
    STATE_WORDS,
    floats,
    pointer,
    words,
)
from edgerun_hw.backend.native.workspace import (
    A_AMOUNTS,
    A_COUNT,
    A_DIVISORS,
    A_IDS,
    ADJUSTMENT_WORDS,
)

# Words of the argument block.
(
    STATE,
    ROWS,
    N,
    K,
    BLOCK,
    CODES,
    CODES_STRIDE,
    X_SCALES,
    X_BLOCKS,
    SCREEN_CODES,
    SCREEN_STRIDE,
    SCREEN_SCALES,
    SCREENED,
    SCREENED_STRIDE,
    WEIGHTS,
    WEIGHTS_STRIDE,
    W_SCALES,
    W_BLOCKS,
    ERRORS,
    NORMS,
    OUT,
    OUT_STRIDE,
    COUNTS,
    ADJUSTMENTS,
    ARGUMENT_WORDS,
) = range(25)
# Words of what is counted: token rows, and rows of heads that were multiplied exactly.
C_TOKENS, C_ROWS, COUNT_WORDS = range(3)
ZERO_POINT = 128


@njit
def _logit(args: Any, codes: Any, x_scales: Any, n: int) -> Any:
    """The exact logit of a row."""
    weights = carray(pointer(args[WEIGHTS] + n * args[WEIGHTS_STRIDE]), args[K], np.uint8)
    blocks = args[W_BLOCKS]
    w_scales = carray(pointer(args[W_SCALES] + 4 * n * blocks), blocks, np.float32)
    total = np.float32(0)
    for block in range(-(-args[K] // args[BLOCK])):
        start = block * args[BLOCK]
        part = np.int32(0)
        for k in range(start, min(args[K], start + args[BLOCK])):
            part += np.int32(codes[k]) * (np.int32(weights[k]) - np.int32(ZERO_POINT))
        total += np.float32(part) * (w_scales[block] * x_scales[block])
    return total


@njit
def _distances(args: Any, codes: Any, x_scales: Any, row: int) -> Any:
    """Norms of the head's activations, and of what the screen's differ from them."""
    stride = args[SCREEN_STRIDE]
    others = carray(pointer(args[SCREEN_CODES] + row * stride), stride, np.int8)
    scale = carray(pointer(args[SCREEN_SCALES] + 4 * row), 1, np.float32)[0]
    norm = distance = 0.0
    for k in range(args[K]):
        x = float(codes[k]) * float(x_scales[k // args[BLOCK]])
        difference = x - float(others[k]) * float(scale)
        norm += x * x
        distance += difference * difference
    return np.sqrt(norm), np.sqrt(distance)


@njit
def _adjusted(logit: Any, divisor: Any, amount: Any) -> Any:
    """What is done to a logit before the largest is taken: ``Adjustment``."""
    return (logit / divisor if logit > 0 else logit * divisor) - amount


@njit
def _adjustment(args: Any, row: int, divisors: Any, amounts: Any) -> None:
    """Spreads what is done to some logits of a row over all of them."""
    divisors[:], amounts[:] = 1, 0
    table = words(args[ADJUSTMENTS] + row * ADJUSTMENT_WORDS * 8, ADJUSTMENT_WORDS)
    count = table[A_COUNT]
    ids = words(table[A_IDS], count)
    listed_divisors = floats(table[A_DIVISORS], 0, count)
    listed_amounts = floats(table[A_AMOUNTS], 0, count)
    for place in range(count):
        divisors[ids[place]] = listed_divisors[place]
        amounts[ids[place]] = listed_amounts[place]


@njit
def _rescore(args: Any, row: int, divisors: Any, amounts: Any) -> Any:
    """Fills a row of logits; returns how many were multiplied."""
    n_rows, stride, blocks = args[N], args[CODES_STRIDE], args[X_BLOCKS]
    codes = carray(pointer(args[CODES] + row * stride), stride, np.int8)
    x_scales = carray(pointer(args[X_SCALES] + 4 * row * blocks), blocks, np.float32)
    start = 4 * row * args[SCREENED_STRIDE]
    screened = carray(pointer(args[SCREENED] + start), n_rows, np.float32)
    out = carray(pointer(args[OUT] + 4 * row * args[OUT_STRIDE]), n_rows, np.float32)
    errors = carray(pointer(args[ERRORS]), n_rows, np.float32)
    norms = carray(pointer(args[NORMS]), n_rows, np.float32)
    norm, distance = _distances(args, codes, x_scales, row)
    _adjustment(args, row, divisors, amounts)
    largest, most = 0, np.float32(-np.inf)
    for n in range(n_rows):
        product = _adjusted(screened[n], divisors[n], amounts[n])
        if product > most:
            largest, most = n, product
    out[largest] = _logit(args, codes, x_scales, largest)
    best = _adjusted(out[largest], divisors[largest], amounts[largest])
    count = 1
    for n in range(n_rows):
        if n == largest:
            continue
        bound = np.float32(screened[n] + errors[n] * norm + norms[n] * distance)
        if _adjusted(bound, divisors[n], amounts[n]) < best:  # what is no number is below none
            out[n] = -np.inf
            continue
        out[n] = _logit(args, codes, x_scales, n)
        best = max(best, _adjusted(out[n], divisors[n], amounts[n]))
        count += 1
    return count


@cfunc("void(intp, intp)", nopython=True, cache=True)
def rescore(arguments: int, chunk: int) -> None:
    """Fills all rows of logits: what is not multiplied exactly is minus infinity."""
    args = words(arguments, ARGUMENT_WORDS)
    if words(args[STATE], STATE_WORDS)[S_STATUS] != FINE:
        return
    counts = words(args[COUNTS], COUNT_WORDS)
    divisors, amounts = np.empty(args[N], np.float32), np.empty(args[N], np.float32)
    for row in range(words(args[ROWS], 1)[0]):
        counts[C_TOKENS] += 1
        counts[C_ROWS] += _rescore(args, row, divisors, amounts)
