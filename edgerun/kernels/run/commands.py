"""Words that a running program shares with a device that computes some of its experts.

A layer gives the device a *command* (``experts/commands.py``), goes on with its own experts, and
takes the results when it comes to them (``experts/results.py``). One command is under way at a
time. Whoever obeys waits for the number of the last one, and writes it into another word when that
is done.
"""

from __future__ import annotations

# Words of the control block; those that both sides look at have cache lines of their own. GIVEN is
# the number of the last command and DONE of the last that was obeyed. FAULT is 0 while all is well:
# else nobody waits any more. ASLEEP is 1 while whoever obeys waits for a byte from the pipe that
# begins at BELL and ends at EAR. LIFE counts up when whoever obeys is to end. Layers give no
# commands unless OPEN is 1.
GIVEN, DONE, FAULT, ASLEEP, LIFE, OPEN = 0, 8, 16, 24, 32, 40
BELL, EAR = 48, 49
# PATIENCE is how many nanoseconds an answer may take, X and OUT are the addresses of the device's
# rows, of which COUNT are in a command, each through the expert in the slot of its number in
# ``SLOTS``. BEGAN and ENDED say when the device was at work. Of so many commands of a layer one has
# a result that is computed by the processor, too (CHECK_EVERY), and of so many layers that the
# processor alone seems faster with one gives a command all the same (TRY_EVERY).
PATIENCE, X, OUT, COUNT, BEGAN, ENDED, CHECK_EVERY, TRY_EVERY = range(50, 58)
SLOTS = 64
MOST_ROWS = 1024  # of a command
CONTROL_WORDS = SLOTS + MOST_ROWS

# Values of FAULT.
FAILED, LATE, DIFFERS = 1, 2, 3

# Words of a layer: how often it was divided and gave commands, how many experts its row goes to,
# how many of these the device computes, the command's number, when the layer began and when the
# processor began with its own experts, whether one is computed by both, what was planned, bound and
# certificate; of both sides what their experts were to cost, which kinds of numbers of rows these
# have, a bit each, the least that they ever took, 0 if that is not known, and what they took;
# whether that was less. Then the experts, those of the processor first, and their numbers of rows.
(
    CALLS,
    COMMANDS,
    ACTIVE,
    THERE,
    NUMBER,
    STARTED,
    WORKING,
    IS_CHECKED,
    PLANNED_NS,
    BOUND_NS,
    CERTIFICATE_NS,
    CPU_COST_NS,
    DEVICE_COST_NS,
    CPU_KINDS,
    DEVICE_KINDS,
    CPU_LEAST_NS,
    DEVICE_LEAST_NS,
    CPU_NS,
    DEVICE_NS,
    IS_LEAST,
    LAYER_WORDS,
) = range(21)

# Sums over all layers and runs, most of them of words above; LEASTS counts layers with IS_LEAST,
# TAKING_SUM is what it took to take results that were there. Of kinds every bit that was set is.
(
    LAYERS,
    ROWS,
    WITH_DEVICE,
    EXPERTS_HERE,
    EXPERTS_THERE,
    PLANNED_SUM,
    BOUND_SUM,
    CERTIFICATE_SUM,
    EARLY,
    SECONDS_SUM,
    CPU_SUM,
    CPU_COST_SUM,
    DEVICE_SUM,
    DEVICE_COST_SUM,
    START_SUM,
    COMMAND_SUM,
    CHECKED,
    LEASTS,
    TAKING_SUM,
    CPU_KINDS_SEEN,
    DEVICE_KINDS_SEEN,
    TOTAL_WORDS,
) = range(22)

# Words of an instruction that is done again where the device did not do its part.
FUNCTION, ARGUMENTS, SIZE, TIMES, DIVIDE, STEP_WORDS = range(6)
