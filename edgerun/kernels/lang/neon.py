"""Integer dot products of 64-bit ARM: without instructions for them, with ``sdot``, with ``usdot``.

The forms that ``dot.py`` describes, for vectors of 16 bytes.

Source: Arm Architecture Reference Manual for A-profile, chapter C7 (SMULL, SMLAL2, SADDLP, ADDP,
SDOT, USDOT).
"""

from __future__ import annotations

from typing import Any

from edgerun.kernels.lang.ir import declare, shuffle
from edgerun.kernels.lang.simd import Vec, constant

_BYTES, _HALF = Vec("i8", 16).llvm, Vec("i8", 8).llvm
_WORDS, _DWORDS = Vec("i16", 8).llvm, Vec("i32", 4).llvm
_ADD_PAIRS = "llvm.aarch64.neon.addp.v4i32"
_MAX_CODE_PRODUCT = {2: 3 * 128, 4: 15 * 128}


def pair_products(builder: Any, left: Any, right: Any) -> Any:
    """Products of eight int16 lanes, added in pairs to int32: ``smull``, ``smull2``, ``addp``."""
    products = []
    for start in (0, 4):
        low, high = (
            shuffle(builder, words, words, range(start, start + 4)) for words in (left, right)
        )
        products.append(builder.mul(builder.sext(low, _DWORDS), builder.sext(high, _DWORDS)))
    return builder.call(declare(builder, _ADD_PAIRS, _DWORDS, _DWORDS, _DWORDS), products)


class WidenedDots:
    """``smlal``: products in int16, one a lane, in two registers; pairs of pairs are int32.

    85 products of 2-bit codes fit, 17 of 4-bit codes; halves of 8-bit codes are multiplied apart.
    """

    centred = False

    def partial(self, lanes: int) -> Vec:
        return Vec("i16", lanes)

    def depth(self, bits: int) -> int:
        return 1 if bits == 8 else 32767 // _MAX_CODE_PRODUCT[bits]

    def add(self, builder: Any, partial: Any, codes: Any, x: Any, lanes: int) -> Any:
        multiply = declare(builder, "llvm.aarch64.neon.smull.v8i16", _WORDS, _HALF, _HALF)
        sums = []
        for start in (0, 8):
            part = range(start, start + 8)
            left, right = (shuffle(builder, both, both, part) for both in (codes, x))
            before = shuffle(builder, partial, partial, part)
            sums.append(builder.add(before, builder.call(multiply, [left, right])))
        return shuffle(builder, sums[0], sums[1], range(16))

    def fold(self, builder: Any, total: Any, partial: Any, lanes: int, factor: int = 1) -> Any:
        pairs = declare(builder, "llvm.aarch64.neon.saddlp.v4i32.v8i16", _DWORDS, _WORDS)
        fours = declare(builder, _ADD_PAIRS, _DWORDS, _DWORDS, _DWORDS)
        halves = [shuffle(builder, partial, partial, range(n, n + 8)) for n in (0, 8)]
        sums = builder.call(fours, [builder.call(pairs, [half]) for half in halves])
        return builder.add(total, builder.mul(sums, constant(Vec("i32", 4), factor)))


class SignedDots:
    """``sdot``: four products of signed bytes added to an int32 lane by one instruction."""

    centred = True
    _NAME = "llvm.aarch64.neon.sdot.v4i32.v16i8"

    def partial(self, lanes: int) -> Vec:
        return Vec("i32", lanes // 4)

    def depth(self, bits: int) -> int:
        return 0

    def add(self, builder: Any, partial: Any, codes: Any, x: Any, lanes: int) -> Any:
        function = declare(builder, self._NAME, _DWORDS, _DWORDS, _BYTES, _BYTES)
        return builder.call(function, [partial, codes, x])

    def fold(self, builder: Any, total: Any, partial: Any, lanes: int, factor: int = 1) -> Any:
        return builder.add(total, builder.mul(partial, constant(Vec("i32", lanes // 4), factor)))


class MixedDots(SignedDots):
    """``usdot``: the same for unsigned codes."""

    centred = False
    _NAME = "llvm.aarch64.neon.usdot.v4i32.v16i8"
