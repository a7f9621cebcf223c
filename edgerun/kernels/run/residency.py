"""Words that a running program shares with whoever brings weights into memory meanwhile.

A layer of experts *posts* which of them it needs (``experts/fetch.py``), and a product waits for
the weights of its expert (``dispatch.py``). Whoever reads weights from a disk takes posts and fills
in a table of addresses, in which 0 stands for weights that are not in memory.
"""

from __future__ import annotations

# Words of a pool's control block; those that several threads write have cache lines of their own.
# LOCK is held by whoever posts or evicts, for some instructions. ABORT is 0 while all is well: then
# nobody waits any more, and what a run computes is to be thrown away. POSTED is the number of the
# last post. WAITED counts nanoseconds in which a thread or more waited, up to the time COVERED.
# BELL is the descriptor of a pipe, to which a byte is written when something is missing, PATIENCE
# the nanoseconds that a wait may take. FORESEES is 0 unless single rows are to be posted with what
# the next layers' routers can be asked about. LOG has the layer of every post, by its number.
LOCK, ABORT, POSTED, WAITED, COVERED = 0, 8, 16, 24, 25
BELL, PATIENCE, FORESEES, LOG = 32, 33, 34, 40
LOG_ENTRIES = 1024
CONTROL_WORDS = LOG + LOG_ENTRIES

# Values of ABORT.
FAILED, LATE = 1, 2

# Words of a layer's post: its number, how many experts it names, how many of them the program is
# done with, how many experts so far were there and were not, the time in nanoseconds, whether the
# layer's input comes with it, and the experts in the order in which the program comes to them.
SEQUENCE, COUNT, DONE, HITS, MISSES, TIME, HAS_INPUT, EXPERTS = range(8)
