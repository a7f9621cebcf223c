"""Brings experts from a file into slots, one after the other, without the interpreter.

What is read next is decided elsewhere. But from a read's end to the moment at which a program may
use the expert, and on to the next read, nobody waits for the interpreter's lock.
"""

from __future__ import annotations

from numba import njit

from edgerun.kernels.jit.declare import function
from edgerun.kernels.lang.intrinsics import (
    atomic_store,
    nanoseconds,
    read_byte,
    read_piece,
    write_byte,
)
from edgerun.kernels.lang.word import set_word, word
from edgerun.kernels.run.fill import rearrange
from edgerun.kernels.run.read_jobs import (
    BELL,
    DONE,
    ENTRY,
    FILE,
    JOB_BYTES,
    MATRICES,
    NANOSECONDS,
    NEEDED,
    OFFSET,
    SKIPPED,
    SLOT,
    SPAN,
    STATE,
    STEP_COUNT,
    STEPS,
    STOP,
    UNDONE,
)


@function("slot-reader", returns=True)
def bring(pipe: int, jobs: int, memory: int, size: int) -> int:
    """Does jobs until it is told to stop.

    Args:
        pipe: descriptor that the numbers of jobs are read from.
        jobs: address of int64 ``[jobs, JOB_WORDS]``.
        memory: address to read to, in turns, a multiple of what direct reads ask for.
        size: of that in bytes; no job's ``SPAN`` is larger.

    Returns:
        1 if it was told to stop, 0 if a signal interrupted its waiting for a job.
    """
    start = 0
    while True:
        number = read_byte(pipe)
        if number < 0:
            return 0
        if number == STOP:
            return 1
        job = jobs + number * JOB_BYTES
        span = word(job, SPAN)
        if start + span > size:
            start = 0
        state, bell = _bring(job, memory + start, span), word(job, BELL)
        start += span
        atomic_store(job + STATE * 8, state)  # from here on the job may be another's
        write_byte(bell)


@njit
def _bring(job, memory, span):  # type: ignore[no-untyped-def]
    """Reads an expert, puts it in order and publishes it; the state of the job after that."""
    began = nanoseconds()
    count = read_piece(word(job, FILE), memory, span, word(job, OFFSET))
    set_word(job, NANOSECONDS, nanoseconds() - began)
    if count < word(job, NEEDED):
        return UNDONE
    source, slot = memory + word(job, SKIPPED), word(job, SLOT)
    raised = rearrange(word(job, STEPS), word(job, STEP_COUNT), source, slot)
    if raised & (1 << word(job, MATRICES)) - 1 != 0:  # of scales; of codes they mean nothing
        return UNDONE
    atomic_store(word(job, ENTRY), slot)
    return DONE
