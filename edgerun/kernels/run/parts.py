"""Parts of a batch that have weights of their own, as native code reads them.

They are found while a program runs (``experts/rows.py``), and kernels are called for each of them
(``dispatch.py``).
"""

from __future__ import annotations

# Words of a part: the number of its weights, its first row, how many rows.
UNIT, START, COUNT, PART_WORDS = range(4)
NOWHERE = -1  # in place of a row's place: an expert that it does not need

# Words of what ``dispatch`` is called with. Then come pairs: for the ``VARYING`` arguments of the
# kernel that belong to the weights their number and their offset in a slot, for the ``MOVING`` ones
# that depend on the first row their number and the bytes of a row, and the same for the ``TILED``
# ones, whose parts begin at whole tiles of ``TOKENS`` rows (``first_of_tiles``).
(
    FUNCTION,
    ARGUMENTS,
    WORDS,
    PARTS,
    FIRST,
    PIECES,
    TABLE,
    CONTROL,
    ROWS,
    VARYING,
    MOVING,
    TILED,
    TOKENS,
    HEADER_WORDS,
) = range(14)
MOST_WORDS = 32  # of a kernel's arguments
MOST_BYTES = 8 * MOST_WORDS
