"""The choice of experts from the router's logits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, int64, njit

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import load, store
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.vectormath import exp
from edgerun.kernels.lang.word import float_at, set_float

INFINITY, NO_NUMBER = np.float32(np.inf), np.float32(np.nan)


@njit
def _exp(x, place):  # type: ignore[no-untyped-def]
    """The exponential that vectors have, of one number; ``place`` is memory for it."""
    set_float(place, 0, x)
    store(place, exp(load(place, "f32", 1)))
    return float_at(place, 0)


@njit
def _logit(x, expert):  # type: ignore[no-untyped-def]
    """A logit as it is compared with others: what is no number is the smallest."""
    value = float_at(x, expert)
    return value if value == value else -INFINITY


@njit
def _next(x, experts, before):  # type: ignore[no-untyped-def]
    """The expert that comes after ``before`` in the order of the choice; -1 is before all."""
    limit = INFINITY if before < 0 else _logit(x, before)
    best = int64(-1)
    for expert in range(experts):
        value = _logit(x, expert)
        follows = value < limit or (value == limit and expert > before)
        if follows and (best < 0 or value > _logit(x, best)):
            best = expert
    return best


@njit
def _total(x, experts, largest, place):  # type: ignore[no-untyped-def]
    """Sum of the exponentials of a row; no number if a logit is none or infinitely large."""
    total = float32(0)
    for expert in range(experts):
        value = float_at(x, expert)
        if not value < INFINITY:
            return NO_NUMBER
        total += _exp(value - largest, place)
    return total if largest > -INFINITY else NO_NUMBER


@njit
def _is_chosen(value, expert, limit, last):  # type: ignore[no-untyped-def]
    """Whether an expert of some value does not come after the last of the choice."""
    return value > limit or (value == limit and expert <= last)


@njit
def _worth(ranks, first, size, best):  # type: ignore[no-untyped-def]
    """What a group of experts is chosen by: the largest of its ranks, or the sum of two."""
    largest, second = -INFINITY, -INFINITY
    for expert in range(first, first + size):
        value = _logit(ranks, expert)
        second = max(second, min(largest, value))
        largest = max(largest, value)
    total = largest + second if best > 1 else largest
    return total if total == total else -INFINITY


@njit
def _next_group(ranks, groups, size, best, limit, before):  # type: ignore[no-untyped-def]
    """The group that comes after ``before``, of worth ``limit``; -1 is before all."""
    group, highest = int64(-1), -INFINITY
    for each in range(groups):
        worth = _worth(ranks, each * size, size, best)
        follows = before < 0 or worth < limit or (worth == limit and each > before)
        if follows and (group < 0 or worth > highest):
            group, highest = each, worth
    return group


@njit
def _leave_groups(ranks, experts, groups, chosen, best):  # type: ignore[no-untyped-def]
    """Makes the ranks of experts of groups that are not chosen as small as can be."""
    size, last, limit = experts // groups, int64(-1), INFINITY
    for _rank in range(chosen):
        last = _next_group(ranks, groups, size, best, limit, last)
        limit = _worth(ranks, last * size, size, best)
    for group in range(groups):
        if not _is_chosen(_worth(ranks, group * size, size, best), group, limit, last):
            for expert in range(group * size, (group + 1) * size):
                set_float(ranks, expert, -INFINITY)


def _score(scoring: str) -> Any:
    """The function that makes a score of a logit, the largest of all and their total."""

    @njit
    def softmax(value, largest, total, place):  # type: ignore[no-untyped-def]
        share = _exp(value - largest, place) if value != -INFINITY else float32(0)
        return share / total

    @njit
    def sigmoid(value, largest, total, place):  # type: ignore[no-untyped-def]
        if value != value:
            return value
        return float32(1) / (float32(1) + _exp(-max(value, float32(-80)), place))

    return {"softmax": softmax, "sigmoid": sigmoid}[scoring]


def _ranked(biased: str) -> Any:
    """The function that makes what an expert is chosen by, of its logit, score and bias."""

    @njit
    def scores(logit, score, bias, expert):  # type: ignore[no-untyped-def]
        return score + float_at(bias, expert)

    @njit
    def logits(logit, score, bias, expert):  # type: ignore[no-untyped-def]
        return logit + float_at(bias, expert)

    @njit
    def plain(logit, score, bias, expert):  # type: ignore[no-untyped-def]
        return logit

    return {"scores": scores, "logits": logits, "": plain}[biased]


@kernel(
    "route",
    "rows:i64[1] x:f32[rows, experts; x_stride] x_stride bias?:f32[experts]"
    " out:f32[rows, experts; out_stride] out_stride scale:f32[1] epsilon:f32[1]"
    " experts top_k normalise groups top_groups group_top_k",
)
def route(scoring: str, biased: str, grouped: bool) -> Body:
    """Scores of the ``top_k`` experts with the largest logits ``x``, 0 for the others.

    With a bias they are those with the largest sum of it and what is ``biased``, ``scores`` or
    ``logits``; that is empty without one. If experts are ``grouped``,
    all are in the ``top_groups`` whose ``group_top_k`` best ones have the largest sum. A chunk is a
    row. Of equal ones the lower number is chosen, and what is no number is the smallest. Relative
    error below 1e-6.
    """
    return _by_ranks(scoring, biased, grouped) if biased or grouped else _by_logits(scoring)


def _by_logits(scoring: str) -> Body:
    score, shares = _score(scoring), scoring == "softmax"

    def body(a: Arguments, chunk: int) -> None:
        experts, place = a.experts, scratch(64)
        x, out = a.x + chunk * a.x_stride * 4, a.out + chunk * a.out_stride * 4
        for expert in range(experts):
            set_float(out, expert, float32(0))
        best = _next(x, experts, int64(-1))
        largest = _logit(x, best)
        total = _total(x, experts, largest, place) if shares else float32(1)
        factor, chosen, sum_of_scores = float_at(a.scale, 0), best, float_at(a.epsilon, 0)
        for _rank in range(a.top_k):
            value = score(float_at(x, chosen), largest, total, place)
            sum_of_scores += value
            set_float(out, chosen, value)
            chosen = _next(x, experts, chosen)
        chosen = best
        for _rank in range(a.top_k):
            value = float_at(out, chosen)
            if a.normalise != 0:
                value = value / sum_of_scores
            set_float(out, chosen, value * factor)
            chosen = _next(x, experts, chosen)

    return body


@njit
def _mixed(x, experts, chosen, before, margin, place):  # type: ignore[no-untyped-def]
    """The score of an expert among those that come behind ``before`` and are close enough."""
    best, total = float_at(x, chosen), float32(0)
    limit = INFINITY if before < 0 else _logit(x, before)
    for expert in range(experts):
        value = float_at(x, expert)
        if before >= 0 and _is_chosen(_logit(x, expert), expert, limit, before):
            continue
        size = -value if value < 0 else value
        largest = size if size > best else best
        difference = value - best
        if difference != difference:
            return NO_NUMBER
        if not -difference / largest > margin:
            total += _exp(difference, place)
    return float32(1) / total


@kernel(
    "sparse_mixer",
    "rows:i64[1] x:f32[rows, experts; x_stride] x_stride out:f32[rows, experts; out_stride]"
    " out_stride scale:f32[1] margin:f32[1] experts top_k",
)
def sparse_mixer() -> Body:
    """Scores of the ``top_k`` experts with the largest logits ``x``, 0 for the others.

    See ``scoring`` of ``ops/route.py``; a chunk is a row. Relative error below 1e-6.
    """

    def body(a: Arguments, chunk: int) -> None:
        experts, place = a.experts, scratch(64)
        x, out = a.x + chunk * a.x_stride * 4, a.out + chunk * a.out_stride * 4
        for expert in range(experts):
            set_float(out, expert, float32(0))
        before, margin = int64(-1), float_at(a.margin, 0)
        for _rank in range(a.top_k):
            chosen = _next(x, experts, before)
            score = _mixed(x, experts, chosen, before, margin, place)
            set_float(out, chosen, score * float_at(a.scale, 0))
            before = chosen

    return body


def _by_ranks(scoring: str, biased: str, grouped: bool) -> Body:
    score, shares, rank = _score(scoring), scoring == "softmax", _ranked(biased)

    def body(a: Arguments, chunk: int) -> None:
        experts, place = a.experts, scratch(64)
        x, out = a.x + chunk * a.x_stride * 4, a.out + chunk * a.out_stride * 4
        largest = _logit(x, _next(x, experts, int64(-1)))
        total = _total(x, experts, largest, place) if shares else float32(1)
        for expert in range(experts):  # ``out`` holds what is compared until all are chosen
            logit = float_at(x, expert)
            value = score(logit, largest, total, place)
            set_float(out, expert, rank(logit, value, a.bias, expert))
        if grouped:
            _leave_groups(out, experts, a.groups, a.top_groups, a.group_top_k)
        last, sum_of_scores = int64(-1), float_at(a.epsilon, 0)
        for _rank in range(a.top_k):
            last = _next(out, experts, last)
            sum_of_scores += score(float_at(x, last), largest, total, place)
        if a.normalise == 0:
            sum_of_scores = float32(1)
        factor, limit = float_at(a.scale, 0), _logit(out, last)
        for expert in range(experts):
            value = float32(0)
            if _is_chosen(_logit(out, expert), expert, limit, last):
                value = score(float_at(x, expert), largest, total, place) / sum_of_scores * factor
            set_float(out, expert, value)

    return body
