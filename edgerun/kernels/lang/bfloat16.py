"""bfloat16: the upper half of a float32, rounded; and the instructions that compute with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llvmlite import ir
from numba.extending import intrinsic

from edgerun.kernels.lang.ir import declare, fused, literals
from edgerun.kernels.lang.simd import Vec, constant

LANES = 16
FLOATS, WORDS, HALVES = Vec("f32", LANES), Vec("i32", LANES), Vec("i16", LANES)
SMALLEST_NORMAL = 2.0**-126  # of float32
QUIET_NAN = 0x7FC0  # of bfloat16


class PlainBfloat16:
    """Emits what the instructions compute in generic vector code, for tests on any machine."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def rounded(self, value: Any) -> Any:
        """Bits of 16 float32 rounded to nearest even, as int16; NaN stays NaN."""
        builder = self.builder
        bits, half = builder.bitcast(value, WORDS.llvm), constant(WORDS, 16)
        is_odd = builder.and_(builder.lshr(bits, half), constant(WORDS, 1))
        raised = builder.add(builder.add(bits, constant(WORDS, 0x7FFF)), is_odd)
        is_number = builder.fcmp_ordered("==", value, value)
        words = builder.select(is_number, builder.lshr(raised, half), constant(WORDS, QUIET_NAN))
        return builder.trunc(words, HALVES.llvm)

    def with_products(self, sums: Any, left: Any, right: Any) -> Any:
        """16 float32 plus the products of as many pairs, those of upper halves first.

        Each is added with one rounding; subnormal numbers count as zero.
        """
        total = self.flushed(sums)
        for part in (1, 0):
            x, y = (self.half(pairs, part) for pairs in (left, right))
            total = self.flushed(fused(self.builder, x, y, total))
        return total

    def half(self, pairs: Any, part: int) -> Any:
        """The lower (0) or the upper ones (1) of pairs, as float32."""
        builder = self.builder
        if part == 0:
            bits = builder.shl(pairs, constant(WORDS, 16))
        else:
            bits = builder.and_(pairs, constant(WORDS, -1 << 16))
        return self.flushed(builder.bitcast(bits, FLOATS.llvm))

    def flushed(self, value: Any) -> Any:
        """Zeros in place of subnormal float32."""
        builder = self.builder
        function = declare(builder, f"llvm.fabs.v{LANES}f32", FLOATS.llvm, FLOATS.llvm)
        size = builder.call(function, [value])
        is_tiny = builder.fcmp_ordered("<", size, constant(FLOATS, SMALLEST_NORMAL))
        return builder.select(is_tiny, ir.Constant(FLOATS.llvm, None), value)


class Avx512Bfloat16(PlainBfloat16):
    """The instructions of AVX512_BF16."""

    def rounded(self, value: Any) -> Any:
        """``vcvtneps2bf16``."""
        kind = ir.FunctionType(HALVES.llvm, [value.type])
        return self.builder.asm(kind, "vcvtneps2bf16 $1, $0", "=v,v", [value], False)

    def with_products(self, sums: Any, left: Any, right: Any) -> Any:
        """``vdpbf16ps``."""
        kind, operands = FLOATS.llvm, [left, right, sums]
        function = ir.FunctionType(kind, [operand.type for operand in operands])
        return self.builder.asm(function, "vdpbf16ps $2, $1, $0", "=v,v,v,0", operands, False)


# By what multiplies bfloat16 (``Isa.bfloat16``). Tiles round by the vectors beside them.
BFLOAT16: Mapping[str, type[PlainBfloat16]] = {
    "amx": Avx512Bfloat16,
    "avx512bf16": Avx512Bfloat16,
    "amx_model": PlainBfloat16,
    "avx512bf16_model": PlainBfloat16,
}


@intrinsic(prefer_literal=True)
def to_bfloat16(typingctx, value, multiplier):  # type: ignore[no-untyped-def]
    """The bits of 16 float32 rounded to nearest even, in the lower halves of int32.

    NaN stays NaN; subnormal numbers may become zero, as they count in products.
    """
    values = literals(multiplier)
    if values is None or value != FLOATS:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        words = BFLOAT16[values[0]](builder).rounded(args[0])
        return builder.zext(words, WORDS.llvm)

    return WORDS(value, multiplier), codegen


@intrinsic
def pair_up(typingctx, low, high):  # type: ignore[no-untyped-def]
    """Pairs of what ``to_bfloat16`` returns, the first in the lower half of each int32."""
    if not isinstance(low, Vec) or low != high:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.or_(args[0], builder.shl(args[1], constant(low, 16)))

    return low(low, high), codegen


@intrinsic
def from_bfloat16(typingctx, bits):  # type: ignore[no-untyped-def]
    """The float32 that such bits stand for."""
    if not isinstance(bits, Vec) or bits.element != "i32":
        return None
    kind = Vec("f32", bits.lanes)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(builder.shl(args[0], constant(bits, 16)), kind.llvm)

    return kind(bits), codegen
