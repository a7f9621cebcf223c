"""Integer dot products: with few other places (``isa.py``) the one that knows instructions.

A ``Dots`` says how products of unsigned weight codes and signed int8 activations are summed: a
lane of int32 gets the four products of its four bytes. It builds LLVM IR; the loops around it are
in ``linear/tiles.py``. Sums run in two stages: ``add`` puts the products of one vector of codes
and one of activations into a partial sum, which may be narrow, and ``fold`` adds a partial sum to
int32 lanes before it can overflow, that is after at most ``depth`` additions. Nothing ever
saturates.

Codes are above the weights they stand for; whoever scales the sums subtracts that.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any, Protocol

from llvmlite import ir

from edgerun.kernels.lang.ir import declare, shuffle
from edgerun.kernels.lang.neon import MixedDots, SignedDots, WidenedDots
from edgerun.kernels.lang.simd import Vec, constant

_MAX_CODE_PRODUCT = {2: 3 * 128, 4: 15 * 128}
MACHINE = platform.machine().lower()
X86 = MACHINE in ("x86_64", "amd64", "i686", "x86")
ARM64 = MACHINE in ("aarch64", "arm64")


class Dots(Protocol):
    """One way to sum products; ``lanes`` are the bytes of a vector, ``bits`` those of a code."""

    centred: bool  # codes are signed bytes: of 8-bit ones the zero point has to be subtracted

    def partial(self, lanes: int) -> Vec:
        """Type of a partial sum."""
        ...

    def depth(self, bits: int) -> int:
        """Additions that a partial sum can take; 0 for any number."""
        ...

    def add(self, builder: Any, partial: Any, codes: Any, x: Any, lanes: int) -> Any:
        """``partial`` plus the products of codes and activations."""
        ...

    def fold(self, builder: Any, total: Any, partial: Any, lanes: int, factor: int = 1) -> Any:
        """``total`` (int32, ``lanes // 4``) plus ``factor`` times the partial sum."""
        ...


def _bytes(lanes: int) -> Any:
    return ir.VectorType(ir.IntType(8), lanes)


def register() -> str:
    """What inline assembly calls a register for vectors."""
    return "x" if X86 else "w"


def total_type(lanes: int) -> Vec:
    """Type of the int32 sums."""
    return Vec("i32", lanes // 4)


class PairDots:
    """Pairs of products in int16, widened to int32 by a multiplication with ones.

    Two products of a 2-bit code stay below 768 and of a 4-bit code below 3840, so 42 or 8 of
    them fit. Halves of 8-bit codes are multiplied apart (``parts`` in ``linear/tiles.py``).
    """

    centred = False

    _MULTIPLY = {16: "llvm.x86.ssse3.pmadd.ub.sw.128", 32: "llvm.x86.avx2.pmadd.ub.sw"}

    def partial(self, lanes: int) -> Vec:
        return Vec("i16", lanes // 2)

    def depth(self, bits: int) -> int:
        return 1 if bits == 8 else 32767 // (2 * _MAX_CODE_PRODUCT[bits])

    def add(self, builder: Any, partial: Any, codes: Any, x: Any, lanes: int) -> Any:
        narrow, half = _bytes(lanes), self.partial(lanes).llvm
        multiply = declare(builder, self._MULTIPLY[lanes], half, narrow, narrow)
        return builder.add(partial, builder.call(multiply, [codes, x]))

    def fold(self, builder: Any, total: Any, partial: Any, lanes: int, factor: int = 1) -> Any:
        widen = declare(builder, _PAIRS[lanes], total.type, partial.type, partial.type)
        factors = constant(self.partial(lanes), factor)
        return builder.add(total, builder.call(widen, [partial, factors]))


class VnniDots:
    """``vpdpbusd``: four products added to an int32 lane by one instruction."""

    centred = False

    def partial(self, lanes: int) -> Vec:
        return total_type(lanes)

    def depth(self, bits: int) -> int:
        return 0

    def add(self, builder: Any, partial: Any, codes: Any, x: Any, lanes: int) -> Any:
        name, narrow = f"llvm.x86.avx512.vpdpbusd.{lanes * 8}", _bytes(lanes)
        function = declare(builder, name, partial.type, partial.type, narrow, narrow)
        return builder.call(function, [partial, codes, x])

    def fold(self, builder: Any, total: Any, partial: Any, lanes: int, factor: int = 1) -> Any:
        return builder.add(total, builder.mul(partial, constant(total_type(lanes), factor)))


class GenericDots:
    """LLVM's generic operations, in the form that each architecture has instructions for.

    Bytes are multiplied as words, those in even and in odd places apart: on x86 that is
    ``pmaddwd``, and what belongs to one lane is in one lane from the start.
    """

    centred = False

    def partial(self, lanes: int) -> Vec:
        return total_type(lanes)

    def depth(self, bits: int) -> int:
        return 0

    def add(self, builder: Any, partial: Any, codes: Any, x: Any, lanes: int) -> Any:
        words = Vec("i16", lanes // 2)
        eight = constant(words, 8)
        codes, x = builder.bitcast(codes, words.llvm), builder.bitcast(x, words.llvm)
        low = builder.and_(codes, constant(words, 255)), builder.ashr(builder.shl(x, eight), eight)
        high = builder.lshr(codes, eight), builder.ashr(x, eight)
        for code_words, x_words in (low, high):
            partial = builder.add(partial, _sum_pairs(builder, code_words, x_words, lanes // 2))
        return partial

    def fold(self, builder: Any, total: Any, partial: Any, lanes: int, factor: int = 1) -> Any:
        return builder.add(total, builder.mul(partial, constant(total_type(lanes), factor)))


def _sum_pairs(builder: Any, left: Any, right: Any, words: int) -> Any:
    """int32 sums of every two neighbouring products of int16."""
    wide = Vec("i32", words).llvm
    products = builder.mul(builder.sext(left, wide), builder.sext(right, wide), flags=["nsw"])
    even = shuffle(builder, products, products, range(0, words, 2))
    return builder.add(even, shuffle(builder, products, products, range(1, words, 2)))


# By the bytes of a vector: what chooses elements by the low bits of indices, and what multiplies
# words and adds pairs of products.
_CHOOSE = {32: "llvm.x86.avx2.permd", 64: "llvm.x86.avx512.permvar.si.512"}
_PAIRS = {
    16: "llvm.x86.sse2.pmadd.wd",
    32: "llvm.x86.avx2.pmadd.wd",
    64: "llvm.x86.avx512.pmaddw.d.512",
}


def negated(builder: Any, dots: Dots, numbers: Any, bits: int, raised: int) -> Any:
    """``raised - numbers % 2**bits`` of int32 lanes, as ``products`` takes it.

    Where a vector has a lane for each number they are looked up, without a mask.
    """
    kind = Vec("i32", numbers.type.count)
    lanes, mask = 4 * kind.lanes, (1 << bits) - 1
    is_word = isinstance(dots, PairDots | VnniDots)
    low = 0xFFFF if is_word else 0xFFFFFFFF
    if is_word and lanes in _CHOOSE and mask < kind.lanes:
        return _chosen(builder, [(raised - each) & low for each in range(mask + 1)], numbers)
    masked = builder.and_(numbers, constant(kind, mask))
    if not is_word:
        return builder.sub(constant(kind, raised), masked)
    words = Vec("i16", 2 * kind.lanes).llvm
    minuend = builder.bitcast(constant(kind, raised & low), words)
    return builder.bitcast(builder.sub(minuend, builder.bitcast(masked, words)), kind.llvm)


def raising(builder: Any, numbers: Any, bits: int) -> Any:
    """What raises codes whose zero points are ``numbers % 2**bits`` so that all have ``2**bits``.

    ``numbers`` are in the lanes of a vector that has one for each; each byte of a lane has what
    raises a code.
    """
    beyond = 1 << bits
    values = [(beyond - each) * 0x01010101 for each in range(beyond)]
    chosen = _chosen(builder, values, numbers)
    return builder.bitcast(chosen, _bytes(4 * numbers.type.count))


def _chosen(builder: Any, values: list[int], numbers: Any) -> Any:
    """Of each lane, the value that its low bits tell: as many bits as there are values for."""
    kind = numbers.type
    choose = declare(builder, _CHOOSE[4 * kind.count], kind, kind, kind)
    table = ir.Constant(kind, [values[lane % len(values)] for lane in range(kind.count)])
    return builder.call(choose, [table, numbers])


def products(builder: Any, dots: Dots, factors: Any, value: Any) -> Any:
    """``factors * value`` of int32 lanes; ``value`` is within 16 bits, as sums of blocks are.

    ``factors`` are from ``negated``. Where words are multiplied in pairs, a factor is a word with a
    zero above it: a product of dwords takes twice as long and the multipliers that codes need.
    """
    lanes = 4 * factors.type.count
    if not isinstance(dots, PairDots | VnniDots):
        return builder.mul(factors, value)
    words = Vec("i16", lanes // 2).llvm
    multiply = declare(builder, _PAIRS[lanes], factors.type, words, words)
    return builder.call(multiply, [builder.bitcast(each, words) for each in (factors, value)])


# By what instruction sets say of themselves (``isa.py``).
DOTS: Mapping[str, Dots] = {
    "vnni": VnniDots(),
    "pairs": PairDots(),
    "generic": GenericDots(),
    "smlal": WidenedDots(),
    "sdot": SignedDots(),
    "usdot": MixedDots(),
}
