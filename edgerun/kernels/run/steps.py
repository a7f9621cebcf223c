"""Words of the steps that rearrange what was read into a slot (``fill.py``).

A step is a call of ``repack`` or ``repack_zeros`` (``layouts/repack.py``): its address, where its
source and its codes begin in the bytes that were read and in the slot, and its numbers.
"""

from __future__ import annotations

FUNCTION, SOURCE, CODES, ROWS, ROW_BYTES, TILES, VECTORS, GROUP, SHIFT, STEP = range(10)
STEP_WORDS = 10
STEP_BYTES = 8 * STEP_WORDS
MOST_STEPS = 62
FLAG_BYTES = 64  # of a vector, at most
