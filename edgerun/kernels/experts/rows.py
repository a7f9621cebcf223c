"""Rows of a batch in the order of the experts that they go to.

A place is a row and one of its experts. Places are sorted by expert, and those of one expert by
row, so that an expert's rows lie one after the other and its weights are read once.
"""

from __future__ import annotations

from numba import float32, int64, njit

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import load, splat, store
from edgerun.kernels.lang.word import float_at, int_at, set_float, set_int, set_word, word
from edgerun.kernels.pointwise.elementwise import copy_floats
from edgerun.kernels.run.parts import COUNT, NOWHERE, PART_WORDS, START, UNIT


@kernel(
    "expert_plan",
    "rows:i64[1] routes:f32[rows, experts; stride] stride experts top_k"
    f" parts:i64[1 + experts * {PART_WORDS}] first:i64[experts]"
    " weights:f32[rows * top_k] places:i32[rows, top_k]",
)
def expert_plan() -> Body:
    """Sorts a batch by its experts; one chunk.

    A row goes to the first ``top_k`` experts whose route is not 0. ``parts`` gets the number of
    experts that have rows and then, in their order, each one's number, first place and number of
    places; ``weights`` the route of each place, and ``places`` the places of
    each row in the order of experts, ``NOWHERE`` for those that it does not need.
    """

    def body(a: Arguments, chunk: int) -> None:
        for expert in range(a.experts):
            set_word(a.first, expert, 0)
        for row in range(word(a.rows, 0)):
            expert = _next_expert(a, row, int64(-1))
            for _taken in range(a.top_k):
                if expert < a.experts:
                    set_word(a.first, expert, word(a.first, expert) + 1)
                    expert = _next_expert(a, row, expert)
        _write_parts(a)
        for row in range(word(a.rows, 0)):
            _place_row(a, row)

    return body


@njit
def _next_expert(a, row, before):  # type: ignore[no-untyped-def]
    """The next expert that a row goes to, or the number of experts."""
    routes, expert = a.routes + row * a.stride * 4, before + 1
    while expert < a.experts and float_at(routes, expert) == 0:
        expert += 1
    return expert


@njit
def _write_parts(a):  # type: ignore[no-untyped-def]
    """Makes first places of the numbers of rows, and lists the experts that have some."""
    place, active = int64(0), int64(0)
    for expert in range(a.experts):
        count = word(a.first, expert)
        set_word(a.first, expert, place)
        if count > 0:
            part = part_at(a.parts, active)
            set_word(part, UNIT, expert)
            set_word(part, START, place)
            set_word(part, COUNT, count)
            active += 1
        place += count
    set_word(a.parts, 0, active)


@njit
def part_at(parts, index):  # type: ignore[no-untyped-def]
    """The address of a part."""
    return parts + 8 + index * PART_WORDS * 8


@njit
def places_end(part):  # type: ignore[no-untyped-def]
    """The place behind those of a part."""
    return word(part, START) + word(part, COUNT)


@njit
def swap_parts(first, second):  # type: ignore[no-untyped-def]
    """Lets two parts change places, by their addresses."""
    for place in range(PART_WORDS):
        value = word(first, place)
        set_word(first, place, word(second, place))
        set_word(second, place, value)


@njit
def _place_row(a, row):  # type: ignore[no-untyped-def]
    """Gives a row its places, behind those of the rows before it."""
    routes, expert = a.routes + row * a.stride * 4, _next_expert(a, row, int64(-1))
    for index in range(row * a.top_k, (row + 1) * a.top_k):
        set_int(a.places, index, NOWHERE)
        if expert < a.experts:
            place = word(a.first, expert)
            set_word(a.first, expert, place + 1)
            set_int(a.places, index, place)
            set_float(a.weights, place, float_at(routes, expert))
            expert = _next_expert(a, row, expert)


@kernel(
    "expert_rows",
    "rows:i64[1] places:i32[rows, top_k] top_k x:f32[rows, width; x_stride] x_stride"
    " spread:f32[rows * top_k, width; spread_stride] spread_stride width",
)
def expert_rows() -> Body:
    """Copies a row to all its places; a chunk is a row. Elements are 4 bytes of anything."""

    def body(a: Arguments, chunk: int) -> None:
        source = a.x + chunk * a.x_stride * 4
        for index in range(chunk * a.top_k, (chunk + 1) * a.top_k):
            place = int_at(a.places, index)
            if place >= 0:
                copy_floats(source, a.spread + place * a.spread_stride * 4, a.width)

    return body


@kernel(
    "expert_sum",
    "rows:i64[1] places:i32[rows, top_k] weights:f32[rows * top_k] top_k"
    " results:f32[rows * top_k, width; results_stride] results_stride"
    " out:f32[rows, width; out_stride] out_stride width",
)
def expert_sum(lanes: int) -> Body:
    """Adds up results of a row's experts, times their weights, in their order; a chunk is a row.

    Two roundings for each expert.
    """

    def body(a: Arguments, chunk: int) -> None:
        width, first, last = a.width, chunk * a.top_k, (chunk + 1) * a.top_k
        out, whole = a.out + chunk * a.out_stride * 4, width // lanes * lanes
        for at in range(0, whole, lanes):
            total = splat(float32(0), "f32", lanes)
            for index in range(first, last):
                place = int_at(a.places, index)
                if place >= 0:
                    address = a.results + (place * a.results_stride + at) * 4
                    weight = splat(float_at(a.weights, place), "f32", lanes)
                    total = total + load(address, "f32", lanes) * weight
            store(out + at * 4, total)
        for at in range(whole, width):
            single = float32(0)
            for index in range(first, last):
                place = int_at(a.places, index)
                if place >= 0:
                    weight = float_at(a.weights, place)
                    single += float_at(a.results, place * a.results_stride + at) * weight
            set_float(out, at, single)

    return body
