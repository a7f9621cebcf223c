"""The loops around tiles of the linear kernels: panels, and batch rows that take turns with them.

Weights are read from memory once: batch rows take turns, four, two or one at a time, while a few
panels are in the caches. Where several rows keep a core busy, hardware does not ask for weights in
time: turns ask for those that they or the next ones will need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

from edgerun.kernels.jit.declare import Arguments, Body
from edgerun.kernels.lang.intrinsics import prefetch
from edgerun.kernels.lang.isa import isa_of
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.word import word
from edgerun.kernels.linear.tiles import AHEAD_BYTES, LINE, SCALES_AHEAD_BYTES, parts

STREAMS = 4  # panels that are read side by side where memory is not the limit
SHARED_BYTES = 24 * 1024  # of a panel, at most, that turns ask for together: 20 KB gain, 40 lose
HIDDEN_PRODUCTS = 8  # that a byte of codes can be multiplied by while the next ones are read


@njit(inline="always")
def lookup_rows(rows, tokens):  # type: ignore[no-untyped-def]
    """How many of a batch's rows are done in blocks of ``tokens`` by lookup; 0 means none.

    A block that is not half full costs more than row by row. A negative number stands for blocks
    of any size: all rows, if there are as many as its magnitude.
    """
    if tokens < 0:
        return rows if rows >= -tokens else 0
    return min(rows, (rows + tokens // 2) // max(1, tokens) * tokens)


def _streams(bits: int, isa: str, tokens: int) -> int:
    """Panels that are read side by side for so many batch rows."""
    return isa_of(isa).streams if tokens * 8 // bits <= HIDDEN_PRODUCTS else STREAMS


def vectors_of(bits: int, isa: str, tokens: int) -> int:
    """Panels of a tile: their partial sums fill half of the registers."""
    room = isa_of(isa).registers // 2 // isa_of(isa).partial
    return min(_streams(bits, isa, tokens), room // tokens // parts(bits, isa))


def turn_of(tokens: int, vectors: int, multiply: Any, store_rows: Any) -> Any:
    """The function that computes and stores the outputs of ``tokens`` rows and ``streams`` panels.

    ``multiply(a, row, panel, apart, last, sums, ahead, pace)`` computes those of ``vectors``
    panels.
    """

    @njit
    def turn(a, row, panel, streams, apart, last, sums, ahead, pace):  # type: ignore[no-untyped-def]
        for stream in range(0, streams, vectors):
            distance = stream * apart
            if distance <= last:
                multiply(a, row, panel + distance, apart, last - distance, sums, ahead, pace)
                store_rows(a, row, tokens, panel + distance, apart, last - distance, sums)

    return turn


def in_turns(turn: Callable[[int], Any], bits: int, lanes: int, isa: str, *, blocks: bool) -> Body:
    """The loops around tiles: panels, and the batch rows that take turns with them.

    ``turn(tokens)`` makes a function as ``turn_of`` does; ``blocks`` says whether scales come in
    blocks. The argument ``lookup`` says which rows other kernels do.
    """
    four_rows, two_rows, one_row = turn(4), turn(2), turn(1)
    streams_of_four, streams_of_two, streams_of_one = (
        _streams(bits, isa, tokens) for tokens in (4, 2, 1)
    )
    sums_bytes = 4 * STREAMS * lanes
    longest_shared = SHARED_BYTES if 4 * 8 // bits <= HIDDEN_PRODUCTS else 0

    def body(a: Arguments, chunk: int) -> None:
        rows, begin = word(a.rows, 0), chunk * a.step
        end = min(a.panels, begin + a.step)
        first = lookup_rows(rows, a.lookup)
        count = rows - first
        streams = streams_of_one if count == 1 else streams_of_two if count < 4 else streams_of_four
        apart = (end - begin + streams - 1) // streams
        sums = scratch(sums_bytes)
        ahead, share, pace = _prefetching(a.tiles * lanes, (count + 3) // 4, longest_shared, lanes)
        if count > 1:
            for panel in range(begin, begin + streams * apart, apart):
                _prefetch(a.codes + panel * a.tiles * lanes, ahead)
                if blocks:
                    _prefetch(a.scales + panel * a.blocks * lanes, SCALES_AHEAD_BYTES)
        for panel in range(begin, begin + apart):
            last, row, at = end - 1 - panel, first, ahead
            while row + 4 <= rows:
                four_rows(a, row, panel, streams, apart, last, sums, at, pace)
                row += 4
                at += share
            if row + 2 <= rows:
                two_rows(a, row, panel, streams, apart, last, sums, at, pace)
                row += 2
            if row < rows:
                one_row(a, row, panel, streams, apart, last, sums, at, pace)

    return body


@njit(inline="always")
def _prefetching(panel_bytes, turns, longest_shared, lanes):  # type: ignore[no-untyped-def]
    """How far ahead the first turn asks for codes, how much further each next one, bytes a vector.

    All turns but the first find a panel in the caches. So that memory does not idle meanwhile,
    each asks for its share of the next panel, if that has ``longest_shared`` bytes at most.
    """
    if turns < 2 or panel_bytes > longest_shared:
        return AHEAD_BYTES, 0, lanes
    share = panel_bytes // turns
    return panel_bytes - share + AHEAD_BYTES, share, lanes // turns


@njit(inline="always")
def _prefetch(address, size):  # type: ignore[no-untyped-def]
    for line in range(address, address + size, LINE):
        prefetch(line)
