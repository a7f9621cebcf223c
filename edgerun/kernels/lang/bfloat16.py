"""bfloat16: the upper half of a float32, rounded."""

from __future__ import annotations

from numba.extending import intrinsic

from edgerun.kernels.lang.ir import literals
from edgerun.kernels.lang.simd import Vec, constant
from edgerun.kernels.lang.tile_registers import LINE, SIDE, TILES


@intrinsic(prefer_literal=True)
def to_bfloat16(typingctx, value, isa):  # type: ignore[no-untyped-def]
    """The bits of 16 float32 rounded to nearest even, in the lower halves of int32.

    NaN stays NaN; subnormal numbers may become zero, as they count in products.
    """
    values = literals(isa)
    if values is None or value != Vec("f32", SIDE):
        return None
    kind = Vec("i32", SIDE)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        words = TILES[values[0]](builder, LINE).to_bfloat16(args[0])
        return builder.zext(words, kind.llvm)

    return kind(value, isa), codegen


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
