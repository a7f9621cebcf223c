"""Where scales and zero points of blocks lie among the vectors of a panel.

Without zero points of their own a panel has a vector of scales for each block. With them every
``32 // bits`` blocks have one vector more, in front of those of their scales: the dword of a row
holds the zero points of those blocks, packed as in the bundle. So they are read in one stream with
the scales, at ``bits`` bits a block.

Where half precision holds all scales of a matrix exactly, a vector has those of two blocks, one
behind the other, as float16: a tenth of int4 in blocks of 32 is not read then. Zero points are
among them in the same way: a dword has those of an even number of blocks.

Where blocks have offsets, a dword has the scale in its lower half and the offset in the upper one,
both float16: they take what scales of float32 take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import int32, njit

from edgerun.kernels.lang.ir import integer, load_from
from edgerun.kernels.lang.simd import (
    Vec,
    constant,
    load,
    mask_bits,
    reinterpret,
    shift_by,
    splat,
)
from edgerun.kernels.layouts.zero_kinds import WORD_BITS, has_own_vectors, vectors_a_word

HALF_BITS = 16


@dataclass(frozen=True)
class ScalePlaces:
    """Emits numbers of vectors, counted from the first of a panel.

    Attributes:
        bits: of a code, and of a zero point.
        zeros: whether blocks have zero points of their own.
        halves: whether scales are float16.
    """

    bits: int
    zeros: bool
    halves: bool = False

    @property
    def group(self) -> int:
        """Blocks whose zero points share a dword."""
        return WORD_BITS // self.bits

    def count(self, builder: Any, blocks: Any) -> Any:
        """Vectors of a panel."""
        vectors = blocks
        if self.halves:
            vectors = builder.lshr(builder.add(blocks, integer(1)), integer(1))
        return builder.add(vectors, self._words(builder, blocks)) if self.zeros else vectors

    def scale_bytes(self, lanes: int) -> int:
        """Bytes of the scales of a block."""
        return lanes // 2 if self.halves else lanes

    def begin(self, builder: Any, block: Any, lanes: int) -> Any:
        """How far what is read for a block, and not before, is from the panel's first vector.

        That is its scales, or the zero points in front of them. Vectors have ``lanes`` bytes.
        """
        place = builder.mul(block, integer(self.scale_bytes(lanes)))
        if not self.zeros:
            return place
        return builder.add(place, builder.mul(self._words(builder, block), integer(lanes)))

    def scales(self, builder: Any, block: Any, lanes: int) -> Any:
        """How far the scales of a block are from the panel's first vector, of ``lanes`` bytes."""
        place = builder.mul(block, integer(self.scale_bytes(lanes)))
        if not self.zeros:
            return place
        words = builder.add(builder.udiv(block, integer(self.group)), integer(1))
        return builder.add(place, builder.mul(words, integer(lanes)))

    def _words(self, builder: Any, blocks: Any) -> Any:
        """Vectors with the zero points of so many blocks."""
        return builder.udiv(builder.add(blocks, integer(self.group - 1)), integer(self.group))

    def load_scales(self, builder: Any, place: Any, lanes: int) -> Any:
        """The scales of a block, float32 whatever they are in memory."""
        element = "f16" if self.halves else "f32"
        scales = load_from(builder, place, Vec(element, lanes // 4).llvm)
        return builder.fpext(scales, Vec("f32", lanes // 4).llvm) if self.halves else scales

    def zero_points(self, builder: Any, block: Any) -> tuple[Any, Any]:
        """The vector with the zero points of a block, and the bit at which they begin."""
        word = builder.udiv(block, integer(self.group))
        place = builder.urem(block, integer(self.group))
        return (
            builder.mul(word, integer(vectors_a_word(self.bits, self.halves))),
            builder.mul(place, integer(self.bits)),
        )


def vectors_of(bits: int, zeros: int, halves: int) -> Any:
    """The function that says how many vectors a panel of so many blocks has."""
    group, own = WORD_BITS // bits, has_own_vectors(zeros)

    @njit(inline="always")
    def count(blocks):  # type: ignore[no-untyped-def]
        vectors = (blocks + 1) // 2 if halves else blocks
        return vectors + (blocks + group - 1) // group if own else vectors

    return count


def halves_of(builder: Any, words: Any) -> tuple[Any, Any]:
    """The lower and the upper half of each dword of a vector, from half precision to float32."""
    count = words.type.count
    integers = Vec("i16", count).llvm
    upper = builder.lshr(words, constant(Vec("i32", count), HALF_BITS))
    lower, upper = (
        builder.fpext(
            builder.bitcast(builder.trunc(part, integers), Vec("f16", count).llvm),
            ir.VectorType(ir.FloatType(), count),
        )
        for part in (words, upper)
    )
    return lower, upper


def raising(bits: int, halves: int, floats: int) -> Any:
    """The function that says what raises a row's codes, in each of the bytes of its dword.

    Arguments are those of ``zero_points_of``.
    """
    zero_points, greatest = zero_points_of(bits, halves, floats), (1 << bits) - 1

    @njit(inline="always")
    def raised(scales, block):  # type: ignore[no-untyped-def]
        distance = splat(int32(greatest), "i32", floats) - zero_points(scales, block)
        return reinterpret(distance * splat(int32(0x01010101), "i32", floats), "u8")

    return raised


def zero_points_of(bits: int, halves: int, floats: int) -> Any:
    """The function that reads the zero points of a block as int32.

    Its arguments are the address of a panel's scales and the block; a panel has ``floats`` rows.
    """
    group, mask, apart = WORD_BITS // bits, (1 << bits) - 1, vectors_a_word(bits, halves)

    @njit(inline="always")
    def zero_points(scales, block):  # type: ignore[no-untyped-def]
        place = scales + block // group * apart * floats * 4
        return mask_bits(shift_by(load(place, "i32", floats), block % group * bits), mask)

    return zero_points
