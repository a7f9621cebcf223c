"""Rearranges all arrays of an expert that was read into a slot, in one call.

Whoever brings weights into memory knows beforehand how experts of a layer are rearranged, but for
two addresses: where the file's bytes are, and where the slot is.
"""

from __future__ import annotations

from numba import njit

from edgerun.kernels.jit.declare import function
from edgerun.kernels.lang.intrinsics import call_chunk
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.word import set_word, word
from edgerun.kernels.run.steps import CODES, FLAG_BYTES, FUNCTION, ROWS, SOURCE, STEP, STEP_BYTES


@function("slot-fill", returns=True)
def fill(steps: int, count: int, source: int, slot: int) -> int:
    """Takes the steps one after the other.

    Args:
        steps: address of int64 ``[count, STEP_WORDS]``.
        count: at most ``MOST_STEPS``.
        source: address of the bytes that were read.
        slot: its address.

    Returns:
        a bit for each step, set where its kernel has raised a flag.
    """
    return rearrange(steps, count, source, slot)  # type: ignore[no-any-return]


@njit
def rearrange(steps, count, source, slot):  # type: ignore[no-untyped-def]
    """What ``fill`` does."""
    arguments, flags, flagged = scratch(STEP_BYTES), scratch(FLAG_BYTES), 0
    for number in range(count):
        step = steps + number * STEP_BYTES
        set_word(arguments, 0, source + word(step, SOURCE))
        set_word(arguments, 1, slot + word(step, CODES))
        for place in range(ROWS, STEP + 1):
            set_word(arguments, place - 1, word(step, place))
        set_word(arguments, STEP, flags)
        for place in range(FLAG_BYTES // 8):
            set_word(flags, place, 0)
        call_chunk(word(step, FUNCTION), arguments, 0)
        raised = 0
        for place in range(FLAG_BYTES // 8):
            raised |= word(flags, place)
        if raised != 0:
            flagged |= 1 << number
    return flagged
