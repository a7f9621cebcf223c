"""Guesses at what the next layers of experts need: their routers, run on what this layer got.

Whoever brings experts into memory wakes up with every layer, beside kernels that read weights
through all caches. So one call says whether there is anything to do at all, and routers are read in
8 bits: a guess that takes a quarter of the memory is worth more than one that is right a little
oftener.
"""

from __future__ import annotations

import numpy as np
from numba import float32, int64, njit

from edgerun.kernels.jit.declare import function
from edgerun.kernels.lang.intrinsics import atomic_load
from edgerun.kernels.lang.simd import cast, fma, load, reduce_add, splat
from edgerun.kernels.lang.word import float_at, set_float, set_word, word
from edgerun.kernels.run.gates import (
    BIAS,
    CODES,
    EXPERTS,
    GATE_BYTES,
    GUESSED,
    INPUT,
    NORM,
    NUMBER,
    POST,
    SCALES,
    TABLE,
    TILE,
    TILES,
    TOP_K,
    WIDTH,
)
from edgerun.kernels.run.residency import COUNT, HAS_INPUT, LOG, LOG_ENTRIES, POSTED, SEQUENCE
from edgerun.kernels.run.residency import EXPERTS as POSTED_EXPERTS

LANES = TILE // 4
INFINITY, NO_NUMBER = np.float32(np.inf), np.float32(np.nan)


@function("experts-at-hand", returns=True)
def at_hand(
    control: int,
    gates: int,
    layers: int,
    reach: int,
    row: int,
    logits: int,
    guesses: int,
    size: int,
) -> int:
    """Whether what the last post needs is in memory, and what later layers will by their routers.

    Looked at are the next layer and that of ``reach`` layers ahead; those between have been that,
    and will be the next.

    Args:
        control: address of a pool's control block.
        gates: address of int64 ``[layers, GATE_WORDS]``.
        layers: how many there are.
        reach: how many layers ahead guesses are made.
        row: address of memory for a row, float32, as wide as the widest codes.
        logits: address of memory for float32 ``[experts]``.
        guesses: address of int64 ``[reach, size]``, which gets the guesses.
        size: words of a guess.

    Returns:
        1 if all are, 0 if not, or if that cannot be said.
    """
    number = atomic_load(control + POSTED * 8)
    layer = word(control, LOG + number % LOG_ENTRIES)
    here = gates + layer * GATE_BYTES
    if layer >= layers or word(here, CODES) == 0 or not _is_there(here, number):
        return 0
    for ahead in (1, reach):
        there, guess = here + ahead * GATE_BYTES, guesses + (ahead - 1) * size * 8
        if layer + ahead < layers:
            if word(there, CODES) == 0:
                return 0
            _guess(here, there, row, logits, guess)
            set_word(guess, NUMBER, number)
            if not _are_there(there, guess + GUESSED * 8, word(there, TOP_K)):
                return 0
    return 1


@function("experts-foresee", returns=False)
def foresee(here: int, there: int, row: int, logits: int, guess: int) -> None:
    """Guesses what a layer will need; the words of two gates, and memory as for ``at_hand``."""
    _guess(here, there, row, logits, guess)


@njit
def _is_there(gate, number):  # type: ignore[no-untyped-def]
    """Whether a post has its input with it, and all that it needs is in memory."""
    post = word(gate, POST)
    if word(post, SEQUENCE) != number or word(post, HAS_INPUT) == 0:
        return False
    return _are_there(gate, post + POSTED_EXPERTS * 8, word(post, COUNT))


@njit
def _are_there(gate, experts, count):  # type: ignore[no-untyped-def]
    """Whether all of some experts of a layer are in memory."""
    for index in range(count):
        if atomic_load(word(gate, TABLE) + word(experts, index) * 8) == 0:
            return False
    return True


@njit
def _guess(here, there, row, logits, guess):  # type: ignore[no-untyped-def]
    _adapt_row(here, there, row)
    experts = word(there, EXPERTS)
    for expert in range(experts):
        set_float(logits, expert, _logit(there, row, expert))
    for place in range(word(there, TOP_K)):
        best = _largest(logits, experts)
        set_float(logits, best, NO_NUMBER)
        set_word(guess, GUESSED + place, best)


@njit
def _adapt_row(here, there, row):  # type: ignore[no-untyped-def]
    """The input of a layer as another's norm would have left it, and zeros behind it."""
    x, norm, other = word(here, INPUT), word(there, NORM), word(here, NORM)
    width, ratio = min(word(here, WIDTH), word(there, WIDTH)), float32(1)
    for column in range(width):
        if norm != 0 and other != 0:
            before = float_at(other, column)
            ratio = float_at(norm, column) / before if before != 0 else float32(1)
        set_float(row, column, float_at(x, column) * ratio)
    for column in range(width, word(there, TILES) * TILE):
        set_float(row, column, float32(0))


@njit
def _logit(gate, row, expert):  # type: ignore[no-untyped-def]
    """That of one expert: memory is read from one end to the other, which is what it is fast at."""
    columns = word(gate, TILES) * TILE
    codes = word(gate, CODES) + expert * columns
    zero = splat(float32(0), "f32", LANES)
    t0, t1, t2, t3 = zero, zero, zero, zero
    for _tile in range(word(gate, TILES)):
        t0 = fma(_floats(codes), load(row, "f32", LANES), t0)
        t1 = fma(_floats(codes + LANES), load(row + 4 * LANES, "f32", LANES), t1)
        t2 = fma(_floats(codes + 2 * LANES), load(row + 8 * LANES, "f32", LANES), t2)
        t3 = fma(_floats(codes + 3 * LANES), load(row + 12 * LANES, "f32", LANES), t3)
        codes += TILE
        row += 4 * TILE
    value = reduce_add((t0 + t1) + (t2 + t3)) * float_at(word(gate, SCALES), expert)
    if word(gate, BIAS) != 0:
        value += float_at(word(gate, BIAS), expert)
    return value if value == value else -INFINITY


@njit
def _floats(codes):  # type: ignore[no-untyped-def]
    return cast(load(codes, "i8", LANES), "f32")


@njit
def _largest(logits, experts):  # type: ignore[no-untyped-def]
    """The first of the largest logits that are numbers."""
    best, highest = int64(0), NO_NUMBER
    for expert in range(experts):
        value = float_at(logits, expert)
        if value > highest or (highest != highest and value == value):
            best, highest = expert, value
    return best
