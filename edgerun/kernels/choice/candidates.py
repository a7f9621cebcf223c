"""From logits to candidates: penalties, temperature, and what the largest logits exclude."""

from __future__ import annotations

from numba import float32, float64, int64, njit

from edgerun.kernels.choice.numbers import (
    COUNT,
    FREQUENCY,
    HIGHEST,
    LEAST,
    NUMBERS,
    PRESENCE,
    REFUSED,
    REPETITION,
    RESULTS,
    TEMPERATURE,
    TOKEN,
    TOP_P,
)
from edgerun.kernels.choice.select import LANES, LOWEST, collect, kth_largest, largest
from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.masks import at_least, lowest_bit
from edgerun.kernels.lang.simd import load, splat, store
from edgerun.kernels.lang.word import (
    double_at,
    float_at,
    set_double,
    set_float,
    set_word,
    word,
)


@kernel(
    "candidates",
    "logits:f32[size] biased?:i64[biases] bias?:f32[biases] biases"
    " seen?:i64[seen_count] seen_count said?:i64[said_count] counts?:i64[said_count] said_count"
    " top_k largest_only size keys:f32[size] depths:f32[size] spare:f32[size] ids:i32[size]"
    f" numbers:f64[{NUMBERS}] result:i64[{RESULTS}]",
)
def candidates() -> Body:
    """What sampling options leave of a row's logits, as the processors of the engine do it.

    Each step rounds to float32 as theirs does. Written are, of each candidate and in the order of
    ids, ``ids``, ``keys``, by which they are ordered, and ``depths``, how far they are from the
    largest key: ``ids`` only where some are left out, which ``COUNT`` tells, and ``depths`` only
    without a temperature, with which they are the keys. ``TOP_P`` below 1 is
    for ``draw``, and then what ``LEAST`` excludes, too. With ``largest_only`` nothing but
    ``TOKEN`` is written, the first of the largest. Of logits of which one is NaN, or the largest
    infinite, or of ids beyond them, nothing is said but ``REFUSED``. One chunk.
    """

    def body(a: Arguments, chunk: int) -> None:
        set_word(a.result, COUNT, REFUSED)
        set_word(a.result, TOKEN, REFUSED)
        source = _adjusted(a) if a.biases + a.seen_count + a.said_count > 0 else a.logits
        if source == 0:
            return
        top = largest(source, a.size)
        if top - top != float32(0):  # NaN too
            return
        if a.largest_only != 0:
            set_word(a.result, TOKEN, _first(source, a.size, top))
            return
        temperature, base = float32(double_at(a.numbers, TEMPERATURE)), top
        if temperature != float32(0):
            _scale(source, a.keys, a.size, top, temperature)
            source, base = a.keys, float32(0)
        set_double(a.numbers, HIGHEST, float64(base))
        bound = _bound(a, source, base)
        if bound == LOWEST:
            set_word(a.result, COUNT, a.size)
            if source != a.keys:
                _subtract(source, a.keys, a.size, float32(0))
        else:
            set_word(a.result, COUNT, collect(source, a.size, bound, a.ids, a.keys))
        if temperature == float32(0):
            _subtract(a.keys, a.depths, word(a.result, COUNT), base)

    return body


@njit
def _adjusted(a):  # type: ignore[no-untyped-def]
    """Copies the logits, adds biases and penalises what was said before; 0 if an id is none."""
    x, outside = a.keys, False
    _subtract(a.logits, x, a.size, float32(0))
    for index in range(a.biases):
        id_ = word(a.biased, index)
        outside = outside or not 0 <= id_ < a.size
        if not outside:
            set_float(x, id_, float_at(x, id_) + float_at(a.bias, index))
    repetition = float32(double_at(a.numbers, REPETITION))
    for index in range(a.seen_count):
        id_ = word(a.seen, index)
        outside = outside or not 0 <= id_ < a.size
        if not outside:
            value = float_at(x, id_)
            set_float(x, id_, value / repetition if value > 0 else value * repetition)
    frequency = double_at(a.numbers, FREQUENCY)
    presence = double_at(a.numbers, PRESENCE)
    for index in range(a.said_count):
        id_ = word(a.said, index)
        outside = outside or not 0 <= id_ < a.size
        if not outside:
            amount = float32(float64(word(a.counts, index)) * frequency + presence)
            set_float(x, id_, float_at(x, id_) - amount)
    return int64(0) if outside else x


@njit
def _subtract(source, target, count, base):  # type: ignore[no-untyped-def]
    """Numbers less one of them; that 0 is subtracted changes none."""
    whole, bases = count // LANES * LANES, splat(base, "f32", 16)
    for index in range(0, whole, LANES):
        store(target + index * 4, load(source + index * 4, "f32", 16) - bases)
    for index in range(whole, count):
        set_float(target, index, float_at(source, index) - base)


@njit
def _scale(source, target, count, top, temperature):  # type: ignore[no-untyped-def]
    """Logits less the largest, divided by the temperature."""
    whole = count // LANES * LANES
    tops, divisors = splat(top, "f32", 16), splat(temperature, "f32", 16)
    for index in range(0, whole, LANES):
        value = load(source + index * 4, "f32", 16)
        store(target + index * 4, (value - tops) / divisors)
    for index in range(whole, count):
        set_float(target, index, (float_at(source, index) - top) / temperature)


@njit
def _first(x, count, top):  # type: ignore[no-untyped-def]
    """The first place where the largest number is."""
    whole, tops = count // LANES * LANES, splat(top, "f32", 16)
    for index in range(0, whole, LANES):
        bits = at_least(load(x + index * 4, "f32", 16), tops)
        if bits != 0:
            return index + lowest_bit(bits)
    place = whole
    while float_at(x, place) < top:
        place += 1
    return place


@njit
def _bound(a, source, base):  # type: ignore[no-untyped-def]
    """The smallest key that a candidate may have; minus infinity if any may."""
    bound, least = LOWEST, double_at(a.numbers, LEAST)
    if 0 < a.top_k < a.size:
        bound = kth_largest(source, a.size, a.top_k, a.spare, a.depths)
    if least <= 0 and double_at(a.numbers, TOP_P) >= 1:
        bound = max(bound, float32(float64(base) + least))
    return bound
