"""bfloat16: the upper half of a float32, rounded."""

from __future__ import annotations

from numba.extending import intrinsic

from edgerun.kernels.lang.simd import Vec, constant

QUIET_NAN = 0x7FC0


@intrinsic
def to_bfloat16(typingctx, value):  # type: ignore[no-untyped-def]
    """The bits of float32 rounded to nearest even, in the lower halves of int32; NaN stays NaN."""
    if not isinstance(value, Vec) or value.element != "f32":
        return None
    kind = Vec("i32", value.lanes)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        bits, half = builder.bitcast(args[0], kind.llvm), constant(kind, 16)
        is_odd = builder.and_(builder.lshr(bits, half), constant(kind, 1))
        raised = builder.add(builder.add(bits, constant(kind, 0x7FFF)), is_odd)
        is_number = builder.fcmp_ordered("==", args[0], args[0])
        return builder.select(is_number, builder.lshr(raised, half), constant(kind, QUIET_NAN))

    return kind(value), codegen


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
