"""Inner loops of the kernels over trits: bytes of five digits become vectors of digits.

A byte is a fraction of 256 (``formats/trits.py``). Widened to 16 bits with zeros below, it gives
its next two digits by one multiplication by 9 of which the high half is kept, and what remains
by the low half of the same. A pair of digits, 0 to 8, is then split by looking it up in two
tables of 16 bytes; where a machine has no instruction for that, digits are taken one by one.
Bytes are widened and narrowed by halves of a vector, or of each 128 bits where instructions work
so: both ways are undone exactly.

Cost with AVX2: 19 instructions for 160 weights, besides the 10 that multiply and add.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from edgerun.formats.trits import BASE, DIGITS
from edgerun.kernels.lang.ir import declare, literals, offset, shuffle, store_to
from edgerun.kernels.lang.isa import isa_of
from edgerun.kernels.lang.simd import ELEMENTS, Vec, constant

QUARTER = 16  # bytes in 128 bits
# By ``Isa.shuffles`` and vector bytes, names of the instructions that look up bytes in 16 and
# that narrow words to bytes, unless generic code finds it.
SHUFFLES: Mapping[str, Mapping[int, tuple[str, str]]] = {
    "": {},
    "neon": {16: ("llvm.aarch64.neon.tbl1.v16i8", "")},
    "x86": {
        32: ("llvm.x86.avx2.pshuf.b", "llvm.x86.avx2.packuswb"),
        64: ("llvm.x86.avx512.pshuf.b.512", "llvm.x86.avx512.packuswb.512"),
    },
}


class Digits:
    """Emits the unpacking for one instruction set and width."""

    def __init__(self, builder: Any, lanes: int, isa: str) -> None:
        self.builder, self.lanes = builder, lanes
        self.bytes, self.words = Vec("u8", lanes), Vec("i16", lanes // 2)
        self.native = SHUFFLES[isa_of(isa).shuffles].get(lanes)

    def unpack(self, packed: Any) -> list[Any]:
        """The five planes of digits of a vector, first digit first."""
        halves = self._widen(packed)
        if not self.native:
            powers = [BASE**plane for plane in range(DIGITS)]
            return [self._carried(halves, power, BASE) for power in powers]
        pairs = [self._carried(halves, BASE**first, BASE * BASE) for first in (0, 2)]
        planes = [self._digit(pair, place) for pair in pairs for place in (BASE, 1)]
        return [*planes, self._carried(halves, BASE**4, BASE)]

    def _carried(self, halves: list[Any], skip: int, factor: int) -> Any:
        """What ``factor`` carries out of the fraction that ``skip`` leaves, one byte a lane."""
        return self._narrow([self._high(self._scaled(half, skip), factor) for half in halves])

    def _scaled(self, words: Any, factor: int) -> Any:
        return words if factor == 1 else self.builder.mul(words, constant(self.words, factor))

    def _high(self, words: Any, factor: int) -> Any:
        """Upper 16 bits of the product; this form is one instruction on x86."""
        wide = Vec("i32", self.lanes // 2)
        product = self.builder.mul(
            self.builder.zext(words, wide.llvm), constant(wide, factor), flags=["nuw"]
        )
        return self.builder.trunc(self.builder.lshr(product, constant(wide, 16)), self.words.llvm)

    def _digit(self, pairs: Any, place: int) -> Any:
        """Digit of a pair: place 3 is the first, place 1 the second."""
        table = [pair // place % BASE for pair in range(QUARTER)] * (self.lanes // QUARTER)
        assert self.native
        name, kind = self.native[0], self.bytes.llvm
        function = declare(self.builder, name, kind, kind, kind)
        return self.builder.call(function, [ir.Constant(kind, table), pairs])

    def _widen(self, packed: Any) -> list[Any]:
        """Bytes in the upper halves of words."""
        zero = constant(self.bytes, 0)
        halves = []
        for half in range(2):
            index = []
            for start, length in self._pieces():
                widened = range(start + half * length // 2, start + (half + 1) * length // 2)
                index += [place for lane in widened for place in (lane, self.lanes + lane)]
            mixed = shuffle(self.builder, zero, packed, index)
            halves.append(self.builder.bitcast(mixed, self.words.llvm))
        return halves

    def _narrow(self, halves: list[Any]) -> Any:
        """Words below 256 back to bytes, in the order before ``_widen``."""
        if self.native and self.native[1]:
            kind = self.words.llvm
            function = declare(self.builder, self.native[1], self.bytes.llvm, kind, kind)
            return self.builder.call(function, halves)
        half = ir.VectorType(ELEMENTS["u8"], self.lanes // 2)
        low, high = (self.builder.trunc(words, half) for words in halves)
        return shuffle(self.builder, low, high, range(self.lanes))

    def _pieces(self) -> list[tuple[int, int]]:
        """Start and length of what is widened by itself."""
        if not self.native:
            return [(0, self.lanes)]
        return [(start, QUARTER) for start in range(0, self.lanes, QUARTER)]


@intrinsic(prefer_literal=True)
def trit_planes(typingctx, packed, target, isa):  # type: ignore[no-untyped-def]
    """Stores the five planes of digits of a vector one after the other at ``target``."""
    values = literals(isa)
    if values is None or not isinstance(packed, Vec):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        for plane, value in enumerate(Digits(builder, packed.lanes, values[0]).unpack(args[0])):
            store_to(builder, value, offset(builder, args[1], plane * packed.lanes))
        return context.get_dummy_value()

    return types.void(packed, types.intp, isa), codegen
