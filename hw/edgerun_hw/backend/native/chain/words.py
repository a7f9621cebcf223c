"""Words of what a chain's instruction is told: a layer's commands, and where its values lie.

A chain is what is queued whole between a layer's attention and the next one's: the commands read
what those before have written, in one memory of the device (``memory.py``).
"""

from __future__ import annotations

from edgerun_hw.backend.native.request import COMMON_WORDS
from edgerun_hw.overlay.register_map import MAX_PORTS

# Of the argument block, behind those of every block: the memory as the processor and the overlay
# see it and where it begins in the contiguous memory, how long it is; the commands; where the
# attention's row comes from and goes to, and the residual's (0: it is there); where the residual is
# wanted (0: nowhere); and the last matrix' outputs, with the scale that they lack.
(
    MEMORY,
    ADDRESS,
    FIRST,
    NBYTES,
    COMMANDS,
    COUNT,
    DEPTH,
    ROW,
    ROW_AT,
    ROW_COUNT,
    RESIDUAL_IN,
    RESIDUAL_OUT,
    RESIDUAL_AT,
    RESIDUAL_COUNT,
    OUTPUTS,
    OUTPUT_COUNT,
    LAST_AT,
    LAST_COUNT,
    SCALE_AT,
    CHECKS,
    SCRATCH,
    ARGUMENT_WORDS,
) = range(COMMON_WORDS, COMMON_WORDS + 22)

# Of a command: the value of CMD_MODE; offsets of operands and results in the memory; the second
# row's, or the device's address of the scales; counts; cycles; the ports' weights; and for the
# definition the norm's weights, or of a matrix the scales, the sums of its columns (0: they cannot
# be looked at) and its integers, int8 [rows, K] (0: not here).
(
    MODE,
    X,
    Y,
    Y_BYTES,
    S_AT,
    S_ADDRESS,
    BEATS,
    TILES,
    CYCLES,
    WEIGHTS,
) = range(10)
BEHIND = WEIGHTS + MAX_PORTS
NORM, SCALES, SUMS, INTEGERS, ROWS, K, COMMAND_WORDS = range(BEHIND, BEHIND + 7)

# Of an output: which of the last matrix' rows, and where they go.
O_FIRST, O_ROWS, O_OUT, OUTPUT_WORDS = range(4)
# Of the checks: runs that came to their end, and commands that were computed again.
K_RUNS, K_COMMANDS, CHECK_WORDS = range(3)
# Commands of which one is computed again, in turn; each stops the queue before and behind it.
CHECK_EVERY = 64
