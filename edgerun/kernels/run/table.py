"""A program in memory, as native code reads it."""

from __future__ import annotations

# Columns of the table that a program is, as native code reads it.
FUNCTION, ARGUMENTS, SIZE, TIMES, DIVIDE, FENCE, COLUMNS = range(7)

# Counters of an instruction: taken and chunks share a cache line, done has one of its own.
COUNTER_BYTES = 128
CHUNKS, DONE = 8, 64
