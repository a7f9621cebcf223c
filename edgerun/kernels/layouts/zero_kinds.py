"""What weights of zero are in each block, as kernels are told; nothing here imports a compiler.

Zero points are the middle of the codes, and nowhere in memory (``MIDDLE``); those among the scales
(``OWN``); the middle, with an offset beside each scale that is added to every weight of the block
(``OFFSETS``); or the greatest code, because codes have been raised by as much as zero points among
the scales are below it (``RAISED``, while codes are unpacked).
"""

from __future__ import annotations

from dataclasses import dataclass

MIDDLE, OWN, OFFSETS, RAISED = 0, 1, 2, 3
WORD_BITS = 32


def has_own_vectors(zeros: int) -> bool:
    """Whether zero points of blocks lie in vectors of their own, among those of the scales."""
    return zeros in (OWN, RAISED)


def vectors_a_word(bits: int, halves: int) -> int:
    """Vectors from one with zero points to the next one."""
    group = WORD_BITS // bits
    return 1 + (group // 2 if halves else group)


@dataclass(frozen=True, slots=True)
class Gaps:
    """Vectors of a panel that are left alone while others are written, for those of zero points.

    Attributes:
        group: vectors behind each of them, a power of two; 0 where there are none.
        shift: its binary logarithm, or more than any number of vectors has digits.
    """

    group: int = 0
    shift: int = 62

    @classmethod
    def of(cls, bits: int, halves: int) -> Gaps:
        """Those among the scales of blocks whose codes, and zero points, have so many bits."""
        group = vectors_a_word(bits, halves) - 1
        return cls(group, group.bit_length() - 1)


NO_GAPS = Gaps()
