"""How a layer's experts are divided between processor and device, as native code reads it."""

from __future__ import annotations

# Words of what an expert costs: on the processor, on the device, and on the link to it.
CPU, DEVICE, UPLOAD, COST_WORDS = range(4)

# Words of the result: when all is done, the bound times the sum of its weights, and these.
MAKESPAN, BOUND, CPU_WEIGHT, DEVICE_WEIGHT, LINK_WEIGHT, RESULT_WORDS = range(6)
# Behind these, in nanoseconds: when all is done with what passes before anything begins, the same
# on the processor alone, and the least that it can take by what was ever seen.
PLANNED, ALONE, CERTIFICATE, DIVISION_WORDS = range(RESULT_WORDS, RESULT_WORDS + 4)
# Costs of an expert by its number of rows, up to 1, 2, 4, 8, ...: nanoseconds of its weights and of
# a row, as estimated on processor and device, and the least ever seen; and what has no rows.
KINDS = 40
CPU_COST, DEVICE_COST, CPU_LEAST, DEVICE_LEAST, PRICES = 0, 2, 4, 6, 8
UPLOAD_COST, UPLOAD_LEAST, CPU_START, DEVICE_START, UPLOAD_START, OTHER_PRICES = range(6)
# Words of what ``expert_division`` is called with.
(
    GIVEN_EXPERTS,
    GIVEN_ROOM,
    GIVEN_PARTS,
    GIVEN_ROWS,
    GIVEN_CACHED,
    GIVEN_PRICES,
    GIVEN_OTHERS,
    GIVEN_COSTS,
    GIVEN_ORDER,
    GIVEN_SHARES,
    GIVEN_RESULT,
    GIVEN_WORDS,
) = range(12)
WEIGHT_SUM = 1 << 20
MAX_COST = (1 << 31) - 1  # products of two fit a word, and so do sums of weighted ones
MAX_EXPERTS = 1 << 11
