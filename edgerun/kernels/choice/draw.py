"""Draws one of the candidates by their weights."""

from __future__ import annotations

from numba import float32, float64, int64, njit

from edgerun.kernels.choice.numbers import (
    BLOCK,
    COUNT,
    HIGHEST,
    LEAST,
    NUMBERS,
    REFUSED,
    RESULTS,
    TOKEN,
    TOP_P,
    UNIFORM,
)
from edgerun.kernels.choice.select import collect, reaching
from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import cast, load, store
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.word import (
    double_at,
    float_at,
    int_at,
    set_double,
    set_float,
    set_int,
    set_word,
    word,
)

LANES = 8
# A weight that is larger by less than that may belong to a smaller key: exponentials are no more
# than a few units in the last place wrong.
SLACK = 1 - 1e-5
FIRST_SHARE, STEP = 8, 16  # of the mass left out: where candidates are looked for first, and next


@kernel(
    "draw",
    "size keys:f32[size] weights:f32[size] depths:f32[size] spare:f32[size] ids:i32[size]"
    f" places:i32[size] sums:f64[1 + size // {BLOCK}] numbers:f64[{NUMBERS}]"
    f" result:i64[{RESULTS}]",
)
def draw() -> Body:
    """Chooses a candidate: the first at which the sum of weights exceeds ``UNIFORM`` of them all.

    Takes what ``candidates`` wrote and ``weights``, the exponentials of ``depths``, and writes
    ``TOKEN``. With ``TOP_P`` below 1 candidates are left out that are not among the fewest with
    the largest keys whose weights sum to that share, or equal to the last of these, and then those
    below ``LEAST``. Sums are float64, of equal order on every machine. One chunk.
    """

    def body(a: Arguments, chunk: int) -> None:
        count = word(a.result, COUNT)
        total = _block_sums(a.weights, count, a.sums)
        set_word(a.result, TOKEN, REFUSED)
        if total != total:
            return
        if double_at(a.numbers, TOP_P) < 1:
            taken = _nucleus(a, count, total)
            place = int64(int_at(a.places, _drawn(a, taken)))
        else:
            place = _place(a, count, double_at(a.numbers, UNIFORM) * total)
        set_word(a.result, TOKEN, int64(int_at(a.ids, place)) if count < a.size else place)

    return body


@njit
def _block_sums(weights, count, sums):  # type: ignore[no-untyped-def]
    """Writes the sum of each block of weights; returns the sum of all."""
    total, lanes = float64(0), scratch(64)
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        whole = start + (stop - start) // (2 * LANES) * 2 * LANES
        part = float64(0)
        if whole > start:
            left = cast(load(weights + start * 4, "f32", 8), "f64")
            right = cast(load(weights + (start + LANES) * 4, "f32", 8), "f64")
            for index in range(start + 2 * LANES, whole, 2 * LANES):
                left = left + cast(load(weights + index * 4, "f32", 8), "f64")
                right = right + cast(load(weights + (index + LANES) * 4, "f32", 8), "f64")
            store(lanes, left + right)
            for lane in range(LANES):
                part += double_at(lanes, lane)
        for index in range(whole, stop):
            part += float64(float_at(weights, index))
        set_double(sums, start // BLOCK, part)
        total += part
    return total


@njit
def _place(a, count, mass):  # type: ignore[no-untyped-def]
    """The first place where the running sum of weights exceeds ``mass``."""
    before, start = float64(0), int64(0)
    while start + BLOCK < count and before + double_at(a.sums, start // BLOCK) <= mass:
        before += double_at(a.sums, start // BLOCK)
        start += BLOCK
    last = int64(0)
    for index in range(start, count):
        weight = float_at(a.weights, index)
        before += float64(weight)
        if before > mass:
            return index
        if weight > 0:
            last = index
    if last == 0:  # rounding carried the sum past the last possible one, in an earlier block
        for index in range(start):
            if float_at(a.weights, index) > 0:
                last = index
    return last


@njit
def _nucleus(a, count, total):  # type: ignore[no-untyped-def]
    """Writes the places of those that are not left out; returns how many they are.

    What weighs less than the share left out, divided by the number of candidates, sums to less
    than that share: no such candidate is needed. Larger bounds are tried first. Whether those
    reach the sum is asked of weights so much above the bound that no larger key is below it.
    """
    share = double_at(a.numbers, TOP_P)
    mass, rest = share * total, (1 - share) * total
    floor, bound = SLACK * rest / count, rest / FIRST_SHARE
    while True:
        if bound < floor or bound < 1e-30:
            bound = floor if floor > 1e-30 else float64(0)
        taken = collect(a.weights, count, float32(bound), a.places, a.depths)
        reached = float64(0)
        for index in range(taken):
            weight = float64(float_at(a.depths, index))
            if weight * SLACK >= bound:
                reached += weight
        if reached >= mass or bound <= floor:
            break
        bound = bound / STEP
    for index in range(taken):
        set_float(a.spare, index, float_at(a.keys, int64(int_at(a.places, index))))
    last, least = reaching(a.spare, a.depths, taken, mass), double_at(a.numbers, LEAST)
    if least <= 0:
        last = max(last, float32(double_at(a.numbers, HIGHEST) + least))
    remaining = int64(0)
    for index in range(taken):
        place = int_at(a.places, index)
        if float_at(a.keys, int64(place)) >= last:
            set_int(a.places, remaining, place)
            remaining += 1
    return remaining


@njit
def _drawn(a, count):  # type: ignore[no-untyped-def]
    """Which of the places the random number falls on."""
    total = float64(0)
    for index in range(count):
        total += float64(float_at(a.weights, int64(int_at(a.places, index))))
    mass, before, last = double_at(a.numbers, UNIFORM) * total, float64(0), int64(0)
    for index in range(count):
        weight = float_at(a.weights, int64(int_at(a.places, index)))
        before += float64(weight)
        if before > mass:
            return index
        if weight > 0:
            last = index
    return last
