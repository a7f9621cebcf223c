"""Comparisons of vectors as bits of a number, and finding these."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from edgerun.kernels.lang.ir import I64, declare
from edgerun.kernels.lang.simd import Vec


@intrinsic
def at_least(typingctx, value, bound):  # type: ignore[no-untyped-def]
    """Bits of the lanes of a float32 vector that are at least those of another; never of NaN."""
    if not isinstance(value, Vec) or not value.is_float or value != bound:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        compared = builder.fcmp_ordered(">=", *args)
        return builder.zext(builder.bitcast(compared, ir.IntType(value.lanes)), I64)

    return types.int64(value, bound), codegen


@intrinsic
def lowest_bit(typingctx, bits):  # type: ignore[no-untyped-def]
    """Place of the lowest bit that is set, from 0; the number has one."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        bit = ir.IntType(1)
        function = declare(builder, "llvm.cttz.i64", I64, I64, bit)
        return builder.call(function, [args[0], ir.Constant(bit, 1)])

    return types.int64(types.int64), codegen
