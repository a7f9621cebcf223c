"""An instruction that multiplies exactly what a screen cannot exclude; see ``backend/screen.py``.

Products are those of ``multiply.py`` for a head with a scale a block, in the same order of float32
operations, so that a logit has the bits that the whole head would give it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from edgerun_hw.backend.native.request import FINE, S_STATUS, STATE_WORDS, pointer, words

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
    ARGUMENT_WORDS,
) = range(24)
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
def _rescore(args: Any, row: int) -> Any:
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
    largest = 0
    for n in range(n_rows):
        if screened[n] > screened[largest]:
            largest = n
    out[largest] = best = _logit(args, codes, x_scales, largest)
    count = 1
    for n in range(n_rows):
        if n == largest:
            continue
        bound = screened[n] + errors[n] * norm + norms[n] * distance
        if bound < best:  # what is no number is below none
            out[n] = -np.inf
            continue
        out[n] = _logit(args, codes, x_scales, n)
        best = max(best, out[n])
        count += 1
    return count


@cfunc("void(intp, intp)", nopython=True, cache=True)
def rescore(arguments: int, chunk: int) -> None:
    """Fills all rows of logits: what is not multiplied exactly is minus infinity."""
    args = words(arguments, ARGUMENT_WORDS)
    if words(args[STATE], STATE_WORDS)[S_STATUS] != FINE:
        return
    counts = words(args[COUNTS], COUNT_WORDS)
    for row in range(words(args[ROWS], 1)[0]):
        counts[C_TOKENS] += 1
        counts[C_ROWS] += _rescore(args, row)
