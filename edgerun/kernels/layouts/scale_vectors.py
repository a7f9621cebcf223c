"""Where scales and zero points of blocks lie among the vectors of a panel.

Without zero points of their own a panel has a vector of scales for each block. With them every
``32 // bits`` blocks have one vector more, in front of those of their scales: the dword of a row
holds the zero points of those blocks, packed as in the bundle. So they are read in one stream with
the scales, at ``bits`` bits a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba import int32, njit

from edgerun.kernels.lang.ir import integer
from edgerun.kernels.lang.simd import load, mask_bits, reinterpret, shift_by, splat

WORD_BITS = 32
# What zero points of blocks are: the middle of the codes, and nowhere in memory; those among the
# scales; or the greatest code, because codes have been raised by as much as those are below it.
MIDDLE, OWN, RAISED = 0, 1, 2


@dataclass(frozen=True)
class ScalePlaces:
    """Emits numbers of vectors, counted from the first of a panel.

    Attributes:
        bits: of a code, and of a zero point.
        zeros: whether blocks have zero points of their own.
    """

    bits: int
    zeros: bool

    @property
    def group(self) -> int:
        """Blocks whose zero points share a dword."""
        return WORD_BITS // self.bits

    def count(self, builder: Any, blocks: Any) -> Any:
        """Vectors of a panel."""
        if not self.zeros:
            return blocks
        words = builder.udiv(builder.add(blocks, integer(self.group - 1)), integer(self.group))
        return builder.add(blocks, words)

    def scales(self, builder: Any, block: Any) -> Any:
        """The vector with the scales of a block."""
        if not self.zeros:
            return block
        word = builder.udiv(block, integer(self.group))
        return builder.add(builder.add(block, word), integer(1))

    def zero_points(self, builder: Any, block: Any) -> tuple[Any, Any]:
        """The vector with the zero points of a block, and the bit at which they begin."""
        word = builder.udiv(block, integer(self.group))
        place = builder.urem(block, integer(self.group))
        return (
            builder.mul(word, integer(self.group + 1)),
            builder.mul(place, integer(self.bits)),
        )


def vectors_of(bits: int, zeros: int) -> Any:
    """The function that says how many vectors a panel of so many blocks has."""
    group = WORD_BITS // bits

    @njit(inline="always")
    def count(blocks):  # type: ignore[no-untyped-def]
        if zeros:
            return blocks + (blocks + group - 1) // group
        return blocks

    return count


def vector_of(bits: int, zeros: int) -> Any:
    """The function that says in which vector of a panel the scales of a block are."""
    group = WORD_BITS // bits

    @njit(inline="always")
    def number(block):  # type: ignore[no-untyped-def]
        if zeros:
            return block + block // group + 1
        return block

    return number


def raising(bits: int, floats: int) -> Any:
    """The function that says what raises a row's codes, in each of the bytes of its dword.

    Arguments are those of ``zero_points_of``.
    """
    zero_points, greatest = zero_points_of(bits, 0, floats), (1 << bits) - 1

    @njit(inline="always")
    def raised(scales, block):  # type: ignore[no-untyped-def]
        distance = splat(int32(greatest), "i32", floats) - zero_points(scales, block)
        return reinterpret(distance * splat(int32(0x01010101), "i32", floats), "u8")

    return raised


def zero_points_of(bits: int, centre: int, floats: int) -> Any:
    """The function that reads the zero points of a block as int32, less ``centre``.

    Its arguments are the address of a panel's scales and the block; a panel has ``floats`` rows.
    """
    group, mask = WORD_BITS // bits, (1 << bits) - 1

    @njit(inline="always")
    def zero_points(scales, block):  # type: ignore[no-untyped-def]
        place = scales + block // group * (group + 1) * floats * 4
        words = shift_by(load(place, "i32", floats), block % group * bits)
        return mask_bits(words, mask) - splat(int32(centre), "i32", floats)

    return zero_points
