"""Integer dot products: with few other places (``isa.py``) the one that knows instructions.

A ``Dots`` says how products of unsigned weight codes and signed int8 activations are summed. It
builds LLVM IR; the loops around it are in ``linear/row_tiles.py``. Sums run in two stages: ``add``
puts the products of one vector of codes and one of activations into a partial sum, which may be
narrow, and ``fold`` adds a partial sum to int32 lanes before it can overflow, that is after at
most ``depth`` additions. Nothing ever saturates.

8-bit codes stand for ``code - 128``; ``prepare`` or the ``offset`` of a variant sees to that.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from llvmlite import ir

from edgerun.kernels.lang.simd import Vec, constant, declare

_MAX_CODE_PRODUCT = {2: 3 * 128, 4: 15 * 128}
X86 = platform.machine().lower() in ("x86_64", "amd64", "i686", "x86")


class Dots(Protocol):
    """One way to sum products; ``lanes`` are the bytes of a vector, ``bits`` those of a code."""

    offset: bool  # 8-bit codes enter as they are: the caller subtracts 128 * sum(x)

    def partial(self, lanes: int) -> Vec:
        """Type of a partial sum."""
        ...

    def depth(self, bits: int) -> int:
        """Additions that a partial sum can take; 0 for any number."""
        ...

    def prepare(self, builder: Any, codes: Any, lanes: int, bits: int) -> Any:
        """What ``add`` needs of a vector of codes, computed once for many activations."""
        ...

    def add(self, builder: Any, partial: Any, codes: Any, x: Any, lanes: int) -> Any:
        """``partial`` plus the products of prepared codes and activations."""
        ...

    def fold(self, builder: Any, total: Any, partial: Any, lanes: int, factor: int = 1) -> Any:
        """``total`` (int32, ``lanes // 4``) plus ``factor`` times the partial sum."""
        ...


def _bytes(lanes: int) -> Any:
    return ir.VectorType(ir.IntType(8), lanes)


def total_type(lanes: int) -> Vec:
    """Type of the int32 sums."""
    return Vec("i32", lanes // 4)


class PairDots:
    """Pairs of products in int16, widened to int32 by a multiplication with ones.

    Two products of a 2-bit code stay below 768 and of a 4-bit code below 3840, so 42 or 8 of
    them fit. 8-bit weights go in as ``|w| * (sign(w) x)``: below 2 * 128 * 127 < 2**15.
    """

    offset = False
    _MULTIPLY = {16: "llvm.x86.ssse3.pmadd.ub.sw.128", 32: "llvm.x86.avx2.pmadd.ub.sw"}
    _WIDEN = {16: "llvm.x86.sse2.pmadd.wd", 32: "llvm.x86.avx2.pmadd.wd"}
    _SIGN = {16: "llvm.x86.ssse3.psign.b.128", 32: "llvm.x86.avx2.psign.b"}

    def partial(self, lanes: int) -> Vec:
        return Vec("i16", lanes // 2)

    def depth(self, bits: int) -> int:
        return 1 if bits == 8 else 32767 // (2 * _MAX_CODE_PRODUCT[bits])

    def prepare(self, builder: Any, codes: Any, lanes: int, bits: int) -> Any:
        if bits != 8:
            return codes, None
        narrow = _bytes(lanes)
        signed = builder.xor(codes, ir.Constant(narrow, [-128] * lanes))
        flag = ir.Constant(ir.IntType(1), 0)
        absolute = declare(builder, f"llvm.abs.v{lanes}i8", narrow, narrow, flag.type)
        return builder.call(absolute, [signed, flag]), signed

    def add(self, builder: Any, partial: Any, codes: Any, x: Any, lanes: int) -> Any:
        magnitude, signed = codes
        narrow, half = _bytes(lanes), self.partial(lanes).llvm
        if signed is not None:
            sign = declare(builder, self._SIGN[lanes], narrow, narrow, narrow)
            x = builder.call(sign, [x, signed])
        multiply = declare(builder, self._MULTIPLY[lanes], half, narrow, narrow)
        return builder.add(partial, builder.call(multiply, [magnitude, x]))

    def fold(self, builder: Any, total: Any, partial: Any, lanes: int, factor: int = 1) -> Any:
        widen = declare(builder, self._WIDEN[lanes], total.type, partial.type, partial.type)
        factors = constant(self.partial(lanes), factor)
        return builder.add(total, builder.call(widen, [partial, factors]))


class VnniDots:
    """``vpdpbusd``: four products added to an int32 lane by one instruction."""

    offset = True

    def partial(self, lanes: int) -> Vec:
        return total_type(lanes)

    def depth(self, bits: int) -> int:
        return 0

    def prepare(self, builder: Any, codes: Any, lanes: int, bits: int) -> Any:
        return codes

    def add(self, builder: Any, partial: Any, codes: Any, x: Any, lanes: int) -> Any:
        name, narrow = f"llvm.x86.avx512.vpdpbusd.{lanes * 8}", _bytes(lanes)
        function = declare(builder, name, partial.type, partial.type, narrow, narrow)
        return builder.call(function, [partial, codes, x])

    def fold(self, builder: Any, total: Any, partial: Any, lanes: int, factor: int = 1) -> Any:
        return builder.add(total, builder.mul(partial, constant(total_type(lanes), factor)))


class GenericDots:
    """LLVM's generic operations, in the form that each architecture has instructions for.

    On x86 sums of neighbouring products become ``pmaddwd``; elsewhere the partial reduction
    becomes ``sdot`` on ARM with dot products and widening multiplications without.
    """

    offset = False

    def __init__(self, add_up: Callable[..., Any] | None = None) -> None:
        """``add_up`` decides which four products go to a lane: any, unless given."""
        self.add_up = add_up or _sum_fours

    def partial(self, lanes: int) -> Vec:
        return total_type(lanes)

    def depth(self, bits: int) -> int:
        return 0

    def prepare(self, builder: Any, codes: Any, lanes: int, bits: int) -> Any:
        if bits == 8:
            codes = builder.xor(codes, ir.Constant(_bytes(lanes), [-128] * lanes))
        return codes

    def add(self, builder: Any, partial: Any, codes: Any, x: Any, lanes: int) -> Any:
        wide = Vec("i32", lanes).llvm
        products = builder.mul(builder.sext(codes, wide), builder.sext(x, wide), flags=["nsw"])
        return self.add_up(builder, partial, products, lanes)

    def fold(self, builder: Any, total: Any, partial: Any, lanes: int, factor: int = 1) -> Any:
        return builder.add(total, builder.mul(partial, constant(total_type(lanes), factor)))


class VnniModel(GenericDots):
    """What ``VnniDots`` computes, in generic operations: tests its callers on any machine."""

    offset = True

    def prepare(self, builder: Any, codes: Any, lanes: int, bits: int) -> Any:
        return codes

    def add(self, builder: Any, partial: Any, codes: Any, x: Any, lanes: int) -> Any:
        wide = Vec("i32", lanes).llvm
        products = builder.mul(builder.zext(codes, wide), builder.sext(x, wide), flags=["nsw"])
        return self.add_up(builder, partial, products, lanes)


def _sum_fours(builder: Any, partial: Any, products: Any, lanes: int) -> Any:
    """Adds int32 products, four to each lane of ``partial``."""
    if not X86:
        name = f"llvm.vector.partial.reduce.add.v{lanes // 4}i32.v{lanes}i32"
        reduce = declare(builder, name, partial.type, partial.type, products.type)
        return builder.call(reduce, [partial, products])
    pairs = builder.add(
        _shuffle(builder, products, range(0, lanes, 2)),
        _shuffle(builder, products, range(1, lanes, 2)),
    )
    halves = builder.add(
        _shuffle(builder, pairs, range(lanes // 4)),
        _shuffle(builder, pairs, range(lanes // 4, lanes // 2)),
    )
    return builder.add(partial, halves)


def _sum_neighbours(builder: Any, partial: Any, products: Any, lanes: int) -> Any:
    """Adds int32 products to ``partial``, products 4 j to 4 j + 3 to lane j."""
    for count in (lanes, lanes // 2):
        products = builder.add(
            _shuffle(builder, products, range(0, count, 2)),
            _shuffle(builder, products, range(1, count, 2)),
        )
    return builder.add(partial, products)


def _shuffle(builder: Any, value: Any, index: range) -> Any:
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(index)), list(index))
    return builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), mask)


# By what instruction sets say of themselves (``isa.py``).
DOTS: Mapping[str, Dots] = {
    "vnni": VnniDots(),
    "pairs": PairDots(),
    "generic": GenericDots(),
    "vnni_model": VnniModel(),
}

# The same with every four neighbouring products in one lane.
DOTS_IN_ORDER: Mapping[str, Dots] = {
    **DOTS,
    "generic": GenericDots(_sum_neighbours),
    "vnni_model": VnniModel(_sum_neighbours),
}
