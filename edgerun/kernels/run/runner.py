"""The native side of ``program.py``: how threads walk a list of instructions.

Each instruction has a counter of chunks taken and one of chunks done, both tagged with the
number of the run in their upper bits, and the number of its chunks in this run. A thread that
wakes up late finds a newer tag, takes nothing and leaves. The order of stores in ``master`` and
of loads in ``_walk`` makes that hold: whoever reads the chunk number of a run also sees that
run's tag, so an old thread never takes a chunk of a run it did not join.
"""

from __future__ import annotations

from numba import njit

from edgerun.kernels.jit.declare import function
from edgerun.kernels.lang.intrinsics import (
    SPINS_BEFORE_YIELD,
    atomic_add,
    atomic_load,
    atomic_store,
    atomic_swap,
    call_chunk,
    compare_exchange,
    rest,
)
from edgerun.kernels.lang.word import word
from edgerun.kernels.run.table import (
    ARGUMENTS,
    CHUNKS,
    COLUMNS,
    COUNTER_BYTES,
    DIVIDE,
    DONE,
    FENCE,
    FUNCTION,
    SIZE,
    TIMES,
)

ROW_BYTES = COLUMNS * 8

# A counter holds run << TAG_SHIFT | number.
TAG_SHIFT = 24
NUMBER_MASK = (1 << TAG_SHIFT) - 1

YIELDS_BEFORE_SLEEP = 400


@njit
def _take(counter, run, chunks):  # type: ignore[no-untyped-def]
    """Takes a chunk number, or -1 when none is left or the run is over."""
    while True:
        value = atomic_load(counter)
        if value >> TAG_SHIFT != run or value & NUMBER_MASK >= chunks:
            return -1
        if compare_exchange(counter, value, value + 1):
            return value & NUMBER_MASK


@njit
def _wait(counter: int, target: int) -> None:
    """Waits until a counter reaches a value; lets other threads run when that takes long."""
    spins = 0
    while atomic_load(counter) < target:
        spins += 1
        rest(spins)


@njit
def _walk(table: int, count: int, counters: int, run: int) -> None:
    """Executes a program; called by every thread of a run with the same arguments."""
    start = 0
    for index in range(count):
        row, counter = table + index * ROW_BYTES, counters + index * COUNTER_BYTES
        chunks = atomic_load(counter + CHUNKS)
        chunk = _take(counter, run, chunks)
        while chunk >= 0:
            call_chunk(word(row, FUNCTION), word(row, ARGUMENTS), chunk)
            atomic_add(counter + DONE, 1)
            chunk = _take(counter, run, chunks)
        if word(row, FENCE):
            for earlier in range(start, index + 1):
                line = counters + earlier * COUNTER_BYTES
                _wait(line + DONE, (run << TAG_SHIFT) + atomic_load(line + CHUNKS))
            start = index + 1
            if atomic_load(counter) >> TAG_SHIFT != run:
                return


@function("runner-master", returns=False)
def master(control: int, table: int, count: int, counters: int, frame: int, run: int) -> None:
    """Publishes a run and takes part in it; returns when it is complete.

    The control block is a sequence lock: while its first word is negative the others change.
    """
    atomic_store(control, -run)
    for index in range(count):
        row, counter = table + index * ROW_BYTES, counters + index * COUNTER_BYTES
        units = word(frame, word(row, SIZE)) * word(row, TIMES)
        atomic_store(counter, (run << TAG_SHIFT) | NUMBER_MASK)
        atomic_store(counter + CHUNKS, (units + word(row, DIVIDE) - 1) // word(row, DIVIDE))
        atomic_store(counter + DONE, run << TAG_SHIFT)
        atomic_store(counter, run << TAG_SHIFT)
    atomic_store(control + 8, table)
    atomic_store(control + 16, count)
    atomic_store(control + 24, counters)
    atomic_store(control, run)
    _walk(table, count, counters, run)


@function("runner-worker", returns=True)
def worker(control: int, idle: int, last: int) -> int:
    """Joins runs as they appear; returns the last run's number when none came for a while.

    While ``idle`` is 0 the thread may look at the program it found in the control block. The
    swap is a full barrier, so that ``settle`` either sees the 0 or is seen by the second load.
    """
    waits = 0
    while waits < SPINS_BEFORE_YIELD + YIELDS_BEFORE_SLEEP:
        run = atomic_load(control)
        if run > last:
            atomic_swap(idle, 0)
            table, count = atomic_load(control + 8), atomic_load(control + 16)
            counters = atomic_load(control + 24)
            if atomic_load(control) == run:
                _walk(table, count, counters, run)
                last = run
                waits = 0
            atomic_store(idle, 1)
        else:
            waits += 1
            rest(waits)
    return last
