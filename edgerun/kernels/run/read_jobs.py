"""Words of a job for threads that bring experts into slots natively (``slot_reader.py``).

A job says where an expert lies in its file, what puts it in order (``steps.py``), and where to. Its
number, a byte in a pipe, has it done; the thread that took it sets STATE and rings a bell.
"""

from __future__ import annotations

# FILE is a descriptor. A read of SPAN bytes from OFFSET on has the expert after SKIPPED of them,
# and NEEDED must have come. STEPS is the address of STEP_COUNT steps, of which the first, as many
# as MATRICES, raise a flag where all is not well. SLOT is the slot's address, ENTRY that of the
# word that gets it. BELL is a pipe that gets a byte in the end. NANOSECONDS is what the read took.
FILE, OFFSET, SPAN, SKIPPED, NEEDED, STEPS, STEP_COUNT, MATRICES = range(8)
SLOT, ENTRY, BELL, NANOSECONDS, STATE = range(8, 13)
JOB_WORDS = 16  # two cache lines, which no other job shares
JOB_BYTES = 8 * JOB_WORDS

# Values of STATE: it is being done, the expert is in its slot, or it is not.
ASKED, DONE, UNDONE = range(3)

STOP = 255  # a number that ends the thread which takes it
