"""The native side of ``program.py``: how threads walk a list of instructions.

Instructions that need not wait for each other are a group. Each instruction has a counter of chunks
taken, tagged with the number of the run in its upper bits, and the number of its chunks in this
run; each group counts the chunks done. A thread that wakes up late finds a newer tag, takes nothing
and leaves. The order of stores in ``master`` and of loads in ``_walk`` makes that hold: whoever
reads the chunk number of a run also sees that run's tag, so an old thread never takes a chunk of a
run it did not join.

What follows a group is often the work of one thread: a norm of one row, a rotation, a write into
the cache. Whoever does the last chunk of a group does all of it, up to the next group that is worth
sharing, before it lets the others go on. They wait once for all of it.
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
    doze,
    rest,
)
from edgerun.kernels.lang.word import word
from edgerun.kernels.run.table import (
    ARGUMENTS,
    AT_ONCE,
    CHUNKS,
    COLUMNS,
    COUNTER_BYTES,
    DIVIDE,
    DONE,
    FUNCTION,
    LAST,
    NEXT,
    OPEN,
    SIZE,
    STEP,
    TIMES,
    TOTAL,
)

ROW_BYTES = COLUMNS * 8

# A counter holds run << TAG_SHIFT | number.
TAG_SHIFT = 24
NUMBER_MASK = (1 << TAG_SHIFT) - 1

# A thread takes no more than one of so many shares at once, so that all end together.
SHARES = 32

# Of a worker without a run. Whoever sleeps is woken by Python, one worker after the other: with
# many of them that takes longer than a layer, so they doze for a while, which ends by itself.
YIELDS_BEFORE_DOZING, DOZES_BEFORE_SLEEP = 400, 50


@njit
def _take(counter, run, chunks, step):  # type: ignore[no-untyped-def]
    """Takes so many chunks or what is left; the first one, or -1: none is, or the run is over."""
    while True:
        value = atomic_load(counter)
        if value >> TAG_SHIFT != run or value & NUMBER_MASK >= chunks:
            return -1
        if compare_exchange(counter, value, value + min(step, chunks - (value & NUMBER_MASK))):
            return value & NUMBER_MASK


@njit
def _wait(counter: int, target: int) -> None:
    """Waits until a counter reaches a value; lets other threads run when that takes long."""
    spins = 0
    while atomic_load(counter) < target:
        spins += 1
        rest(spins)


@njit
def _run_alone(table, counters, first, end):  # type: ignore[no-untyped-def]
    """Executes instructions of one chunk or none."""
    for index in range(first, end):
        if atomic_load(counters + index * COUNTER_BYTES + CHUNKS) > 0:
            row = table + index * ROW_BYTES
            call_chunk(word(row, FUNCTION), word(row, ARGUMENTS), 0)


@njit
def _walk(table: int, count: int, counters: int, run: int, first: int) -> None:
    """Executes a program from an instruction on; called by every thread with the same arguments."""
    index = first
    while index < count:
        last = word(table + index * ROW_BYTES, LAST)
        group = counters + last * COUNTER_BYTES
        # Read before any chunk is taken: a run does not end while one is not done.
        total, following = atomic_load(group + TOTAL), atomic_load(group + NEXT)
        for each in range(index, last + 1):
            row, counter = table + each * ROW_BYTES, counters + each * COUNTER_BYTES
            chunks, step = atomic_load(counter + CHUNKS), atomic_load(counter + STEP)
            chunk = _take(counter, run, chunks, step)
            while chunk >= 0:
                taken = min(step, chunks - chunk)
                for number in range(chunk, chunk + taken):
                    call_chunk(word(row, FUNCTION), word(row, ARGUMENTS), number)
                if atomic_add(group + DONE, taken) + taken == total:
                    _run_alone(table, counters, last + 1, following)
                    atomic_store(group + OPEN, 2 * run + 1)
                chunk = _take(counter, run, chunks, step)
        _wait(group + OPEN, 2 * run + 1)
        if atomic_load(group) >> TAG_SHIFT != run:
            return
        index = following


@njit
def _prepare(table, count, counters, frame, run):  # type: ignore[no-untyped-def]
    """Sets all counters for a run; returns the first instruction that threads share.

    A group of rows of which there is one, or none, is done by whoever ends the group before it.
    """
    first, shared, index = 0, -1, 0
    while index < count:
        last = word(table + index * ROW_BYTES, LAST)
        total, is_shared = 0, False
        for each in range(index, last + 1):
            row, counter = table + each * ROW_BYTES, counters + each * COUNTER_BYTES
            units, divide = word(frame, word(row, SIZE)) * word(row, TIMES), word(row, DIVIDE)
            chunks = (units + divide - 1) // divide
            total += chunks
            is_shared |= chunks > 1 or (chunks == 1 and word(row, TIMES) > 1)
            atomic_store(counter, (run << TAG_SHIFT) | NUMBER_MASK)
            atomic_store(counter + CHUNKS, chunks)
            step = max(1, min(word(row, AT_ONCE), chunks // SHARES))
            atomic_store(counter + STEP, step)
            atomic_store(counter, run << TAG_SHIFT)
        if is_shared:
            shared = counters + last * COUNTER_BYTES
            atomic_store(shared + TOTAL, total)
            atomic_store(shared + DONE, 0)
            atomic_store(shared + OPEN, 2 * run)
        if shared < 0:
            first = last + 1
        else:
            atomic_store(shared + NEXT, last + 1)
        index = last + 1
    return first


@function("runner-master", returns=False)
def master(control: int, table: int, count: int, counters: int, frame: int, run: int) -> None:
    """Publishes a run and takes part in it; returns when it is complete.

    The control block is a sequence lock: while its first word is negative the others change.
    """
    atomic_store(control, -run)
    first = _prepare(table, count, counters, frame, run)
    _run_alone(table, counters, 0, first)
    atomic_store(control + 8, table)
    atomic_store(control + 16, count)
    atomic_store(control + 24, counters)
    atomic_store(control + 32, first)
    atomic_store(control, run)
    _walk(table, count, counters, run, first)


@function("runner-worker", returns=True)
def worker(control: int, idle: int, last: int) -> int:
    """Joins runs as they appear; returns the last run's number when none came for a while.

    While ``idle`` is 0 the thread may look at the program it found in the control block. The
    swap is a full barrier, so that ``settle`` either sees the 0 or is seen by the second load.
    """
    waits = 0
    awake = SPINS_BEFORE_YIELD + YIELDS_BEFORE_DOZING
    while waits < awake + DOZES_BEFORE_SLEEP:
        run = atomic_load(control)
        if run > last:
            atomic_swap(idle, 0)
            table, count = atomic_load(control + 8), atomic_load(control + 16)
            counters, first = atomic_load(control + 24), atomic_load(control + 32)
            if atomic_load(control) == run:
                _walk(table, count, counters, run, first)
                last = run
                waits = 0
            atomic_store(idle, 1)
        else:
            waits += 1
            if waits <= awake:
                rest(waits)
            else:
                doze()
    return last
