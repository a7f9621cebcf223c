"""The compiled form of ``offload/schedule.py``, which says what is computed and why."""

from __future__ import annotations

from numba import int64, njit

from edgerun.kernels.experts.division import (
    ALONE,
    BOUND,
    CERTIFICATE,
    COST_WORDS,
    CPU,
    CPU_COST,
    CPU_LEAST,
    CPU_START,
    CPU_WEIGHT,
    DEVICE,
    DEVICE_COST,
    DEVICE_LEAST,
    DEVICE_START,
    DEVICE_WEIGHT,
    DIVISION_WORDS,
    KINDS,
    LINK_WEIGHT,
    MAKESPAN,
    MAX_COST,
    OTHER_PRICES,
    PLANNED,
    PRICES,
    RESULT_WORDS,
    UPLOAD,
    UPLOAD_COST,
    UPLOAD_LEAST,
    UPLOAD_START,
    WEIGHT_SUM,
)
from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.word import double_at, set_word, word

STEPS = 40  # more than were ever needed to find where a bound is largest
EXACT = 1e-12


@kernel(
    "expert_schedule",
    f"experts room parts costs:i64[experts, {COST_WORDS}] order:i64[experts]"
    f" shares:i64[experts] result:i64[{RESULT_WORDS}]",
)
def expert_schedule() -> Body:
    """Divides the experts of a layer between processor and device; one chunk.

    ``costs`` are those of a whole expert on the processor, on the device and on the link, where 0
    stands for one that is on the device already; below 2**31. ``order`` gets the experts in the
    order in which the device has them, if it has them, and ``shares`` the parts of each that it
    has. Exact, in integers, but for the weights of the bound.
    """

    def body(a: Arguments, chunk: int) -> None:
        cached = _sort(a)
        _sweep(a, cached)
        _certify(a)

    return body


@kernel(
    "expert_division",
    "experts room parts rows:i64[experts] cached:i64[experts]"
    f" prices:f64[{KINDS}, {PRICES}] others:f64[{OTHER_PRICES}] costs:i64[experts, {COST_WORDS}]"
    f" order:i64[experts] shares:i64[experts] result:i64[{DIVISION_WORDS}]",
)
def expert_division() -> Body:
    """``expert_schedule`` of experts with so many ``rows`` each, and what comes of it; one chunk.

    ``cached`` is 1 for experts that are on the device. ``costs`` gets what they cost by ``prices``
    and ``others`` (``division.py``), and ``result`` three words more.
    """

    def body(a: Arguments, chunk: int) -> None:
        for expert in range(a.experts):
            _price(a, expert)
        cached = _sort(a)
        _sweep(a, cached)
        _certify(a)
        _expect(a)

    return body


@njit
def kind_of(rows):  # type: ignore[no-untyped-def]
    """Which numbers of rows kernels take alike."""
    kind, left = int64(0), rows - 1
    while left > 0 and kind < KINDS - 1:
        kind, left = kind + 1, left >> 1
    return kind


@njit
def price_of(prices, rows, price):  # type: ignore[no-untyped-def]
    """Nanoseconds of an expert with so many rows by two prices, of its weights and of a row."""
    at = kind_of(rows) * PRICES + price
    return double_at(prices, at) + double_at(prices, at + 1) * rows


@njit
def _priced(a, expert, price):  # type: ignore[no-untyped-def]
    """Nanoseconds of an expert by two prices, that of its weights and that of a row."""
    return price_of(a.prices, word(a.rows, expert), price)


@njit
def _whole(nanoseconds):  # type: ignore[no-untyped-def]
    return int64(min(max(nanoseconds, 1.0), float(MAX_COST)) + 0.5)


@njit
def _price(a, expert):  # type: ignore[no-untyped-def]
    """Writes what an expert is estimated to cost."""
    first, upload = expert * COST_WORDS, int64(0)
    if word(a.cached, expert) == 0:
        upload = _whole(double_at(a.others, UPLOAD_COST))
    set_word(a.costs, first + CPU, _whole(_priced(a, expert, CPU_COST)))
    set_word(a.costs, first + DEVICE, _whole(_priced(a, expert, DEVICE_COST)))
    set_word(a.costs, first + UPLOAD, upload)


@njit
def _expect(a):  # type: ignore[no-untyped-def]
    """Writes what the division takes with all beginnings, the processor alone, and the least."""
    here, alone, link, least, is_shared = 0.0, 0.0, 0.0, 0.0, False
    there = double_at(a.others, DEVICE_START)
    weights = word(a.result, CPU_WEIGHT), word(a.result, DEVICE_WEIGHT), word(a.result, LINK_WEIGHT)
    for place in range(a.experts):
        expert = word(a.order, place)
        share = word(a.shares, expert) / a.parts
        cpu, upload = _cost(a, expert, CPU), _cost(a, expert, UPLOAD)
        alone += cpu
        here += cpu * (1 - share)
        if share > 0:
            is_shared = True
            if upload > 0:
                link += upload * share
                there = max(there, double_at(a.others, UPLOAD_START) + link)
            there += _cost(a, expert, DEVICE) * share
        elsewhere = weights[1] * _priced(a, expert, DEVICE_LEAST)
        if upload > 0:
            elsewhere += weights[2] * double_at(a.others, UPLOAD_LEAST)
        least += min(weights[0] * _priced(a, expert, CPU_LEAST), elsewhere)
    if is_shared:
        here = max(here + double_at(a.others, CPU_START), there)
    set_word(a.result, PLANNED, int64(here + 0.5))
    set_word(a.result, ALONE, int64(alone))
    set_word(a.result, CERTIFICATE, int64(least / WEIGHT_SUM))


@njit
def _cost(a, expert, resource):  # type: ignore[no-untyped-def]
    return word(a.costs, expert * COST_WORDS + resource)


@njit
def _precedes(a, expert, other):  # type: ignore[no-untyped-def]
    """Whether the device gains more by an expert than by another, both cached or both not."""
    mine, theirs = _cost(a, expert, CPU), _cost(a, other, CPU)
    by_link = mine * _cost(a, other, UPLOAD) - theirs * _cost(a, expert, UPLOAD)
    if by_link != 0:
        return by_link > 0
    return mine * _cost(a, other, DEVICE) > theirs * _cost(a, expert, DEVICE)


@njit
def _insert(a, expert, first, last):  # type: ignore[no-untyped-def]
    """Puts an expert where it belongs in ``order[first:last]``; equal ones stay as they come."""
    place = last
    while place > first and _precedes(a, expert, word(a.order, place - 1)):
        set_word(a.order, place, word(a.order, place - 1))
        place -= 1
    set_word(a.order, place, expert)


@njit
def _sort(a):  # type: ignore[no-untyped-def]
    """Writes ``order``, cached experts first; returns how many these are."""
    cached = int64(0)
    for expert in range(a.experts):
        if _cost(a, expert, UPLOAD) == 0:
            _insert(a, expert, int64(0), cached)
            cached += 1
    last = cached
    for expert in range(a.experts):
        if _cost(a, expert, UPLOAD) > 0:
            _insert(a, expert, cached, last)
            last += 1
    return cached


@njit
def _sweep(a, cached):  # type: ignore[no-untyped-def]
    """Tries every number of uploaded parts, with the best number of cached ones for each.

    Uploads come as they are sorted, or the other way round; ``forth`` and ``back`` are when the
    device would be done with them alone.
    """
    parts = a.parts
    cpu, device = int64(0), int64(0)
    for place in range(a.experts):
        expert = word(a.order, place)
        if place < cached:
            device += _cost(a, expert, DEVICE) * parts
        else:
            cpu += _cost(a, expert, CPU) * parts
    cpu, device, retained = _give_back(a, cpu, device, cached * parts)
    best, uploaded, best_retained, turned = max(cpu, device), int64(0), retained, False
    forth, back, link, products = int64(0), int64(0), int64(0), int64(0)
    for place in range(cached, min(a.experts, cached + a.room)):
        expert = word(a.order, place)
        c, g, t = _cost(a, expert, CPU), _cost(a, expert, DEVICE), _cost(a, expert, UPLOAD)
        last, first = forth, back
        for share in range(1, parts + 1):
            last = max(forth, link + share * t) + share * g
            first = share * t + max(back, share * g + products)
            if min(last, first) >= best:
                break
            cpu, device, retained = _give_back(a, cpu - c, device + g, retained)
            end = max(cpu, device, min(last, first))
            if end < best:
                best, best_retained, turned = end, retained, first < last
                uploaded = (place - cached) * parts + share
        if min(last, first) >= best:
            break
        forth, back, link, products = last, first, link + parts * t, products + parts * g
    for place in range(a.experts):
        on_device = best_retained if place < cached else uploaded + cached * parts
        share = min(parts, max(int64(0), on_device - place * parts))
        set_word(a.shares, word(a.order, place), share)
    if turned:
        _reverse(a, cached, cached + (uploaded + parts - 1) // parts)
    set_word(a.result, MAKESPAN, best)


@njit
def _reverse(a, first, end):  # type: ignore[no-untyped-def]
    """Turns ``order[first:end]`` round."""
    for step in range((end - first) // 2):
        left, right = first + step, end - 1 - step
        expert = word(a.order, left)
        set_word(a.order, left, word(a.order, right))
        set_word(a.order, right, expert)


@njit
def _give_back(a, cpu, device, retained):  # type: ignore[no-untyped-def]
    """Moves cached parts to the processor as long as nothing ends later for it."""
    while retained > 0:
        expert = word(a.order, (retained - 1) // a.parts)
        more, less = cpu + _cost(a, expert, CPU), device - _cost(a, expert, DEVICE)
        if max(more, less) > max(cpu, device):
            break
        cpu, device, retained = more, less, retained - 1
    return cpu, device, retained


@njit
def _loads(a, p, q):  # type: ignore[no-untyped-def]
    """What processor, device and link would have to do, were each expert where it is cheapest."""
    cpu, device, link = int64(0), int64(0), int64(0)
    for expert in range(a.experts):
        c, g, t = _cost(a, expert, CPU), _cost(a, expert, DEVICE), _cost(a, expert, UPLOAD)
        there = p * g + q * t < (1 - p - q) * c
        cpu += int64(0) if there else c
        device += g if there else int64(0)
        link += t if there else int64(0)
    return float(cpu), float(device), float(link)


@njit
def _height(a, q):  # type: ignore[no-untyped-def]
    """The largest bound for a weight ``q`` of the link: its value, that of ``p``, slope in ``q``.

    A concave function made of straight pieces: where the tangents of two points meet is the top,
    or a point between them.
    """
    cpu, device, link = _loads(a, 0.0, q)
    p0, f0, s0, o0 = 0.0, cpu * (1 - q) + link * q, device - cpu, link - cpu
    if s0 <= 0:
        return f0, p0, o0
    cpu, device, link = _loads(a, 1 - q, q)
    p1, f1, s1, o1 = 1 - q, device * (1 - q) + link * q, device - cpu, link - cpu
    top, at = f0, p0
    for _step in range(STEPS):
        at = min(max((f1 - f0 + s0 * p0 - s1 * p1) / (s0 - s1), p0), p1)
        tangent = f0 + s0 * (at - p0)
        cpu, device, link = _loads(a, at, q)
        top, slope = cpu * (1 - at - q) + device * at + link * q, device - cpu
        if slope == 0:
            return top, at, link - cpu
        if top >= tangent * (1 - EXACT):
            break
        if slope > 0:
            p0, f0, s0, o0 = at, top, slope, link - cpu
        else:
            p1, f1, s1, o1 = at, top, slope, link - cpu
    return top, at, (s0 * o1 - s1 * o0) / (s0 - s1)


@njit
def _top(a):  # type: ignore[no-untyped-def]
    """The weights of device and link with the largest bound, found as in ``_height``."""
    f0, p0, s0 = _height(a, 0.0)
    if s0 <= 0:
        return p0, 0.0
    f1, p1, s1 = _height(a, 1.0)
    q0, q1, p, at, highest = 0.0, 1.0, p0, 0.0, f0
    best_p, best_q = p0, 0.0
    for _step in range(STEPS):
        if s0 <= s1:
            break
        at = min(max((f1 - f0 + s0 * q0 - s1 * q1) / (s0 - s1), q0), q1)
        tangent = f0 + s0 * (at - q0)
        top, p, slope = _height(a, at)
        if top > highest:
            highest, best_p, best_q = top, p, at
        if slope == 0 or top >= tangent * (1 - EXACT):
            break
        if slope > 0:
            q0, f0, s0 = at, top, slope
        else:
            q1, f1, s1 = at, top, slope
    return best_p, best_q


@njit
def _certify(a):  # type: ignore[no-untyped-def]
    """Writes the largest bound, with its weights rounded to integers that add up."""
    p, q = _top(a)
    link = int64(q * WEIGHT_SUM + 0.5)
    device = min(int64(p * WEIGHT_SUM + 0.5), WEIGHT_SUM - link)
    cpu, total = WEIGHT_SUM - link - device, int64(0)
    for expert in range(a.experts):
        there = device * _cost(a, expert, DEVICE) + link * _cost(a, expert, UPLOAD)
        total += min(cpu * _cost(a, expert, CPU), there)
    set_word(a.result, BOUND, total)
    set_word(a.result, CPU_WEIGHT, cpu)
    set_word(a.result, DEVICE_WEIGHT, device)
    set_word(a.result, LINK_WEIGHT, link)
