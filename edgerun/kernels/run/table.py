"""A program in memory, as native code reads it."""

from __future__ import annotations

# Columns of the table that a program is, as native code reads it. Instructions between two waits
# are a group: LAST is the index of its last one.
FUNCTION, ARGUMENTS, SIZE, TIMES, DIVIDE, AT_ONCE, LAST, COLUMNS = range(8)

# Counters of an instruction: the first word are the chunks taken. Those from TOTAL on are a group's
# and lie with its last instruction. DONE, which all threads write, has a cache line of its own.
COUNTER_BYTES = 128
CHUNKS, TOTAL, NEXT, OPEN, STEP, DONE = 8, 16, 24, 32, 40, 64
