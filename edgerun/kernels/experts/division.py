"""How a layer's experts are divided between processor and device, as native code reads it."""

from __future__ import annotations

# Words of what an expert costs: on the processor, on the device, and on the link to it.
CPU, DEVICE, UPLOAD, COST_WORDS = range(4)

# Words of the result: when all is done, the bound times the sum of its weights, and these.
MAKESPAN, BOUND, CPU_WEIGHT, DEVICE_WEIGHT, LINK_WEIGHT, RESULT_WORDS = range(6)
WEIGHT_SUM = 1 << 20
MAX_COST = (1 << 31) - 1  # products of two fit a word, and so do sums of weighted ones
MAX_EXPERTS = 1 << 11
