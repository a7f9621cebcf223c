"""What weights of zero are in each block, as kernels are told; nothing here imports a compiler.

Zero points are the middle of the codes, and nowhere in memory (``MIDDLE``); those among the scales
(``OWN``); the middle, with an offset beside each scale that is added to every weight of the block
(``OFFSETS``); or the greatest code, because codes have been raised by as much as zero points among
the scales are below it (``RAISED``, while codes are unpacked).
"""

from __future__ import annotations

MIDDLE, OWN, OFFSETS, RAISED = 0, 1, 2, 3


def has_own_vectors(zeros: int) -> bool:
    """Whether zero points of blocks lie in vectors of their own, among those of the scales."""
    return zeros in (OWN, RAISED)
