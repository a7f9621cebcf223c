"""Operations that round once, and a dot product of four bytes, as instructions of a GPU.

Plain ``a * b + c`` may become one instruction with one rounding, as the compiler likes; these may
not. Their twins for Numba's simulator are in ``twins.py``; ``arithmetic.py`` chooses.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.cuda import libdevice
from numba.cuda.extending import intrinsic

add, multiply, divide = libdevice.fadd_rn, libdevice.fmul_rn, libdevice.fdiv_rn
fma = libdevice.fmaf_rn
round_even = libdevice.rintf
float_of_bits = libdevice.int_as_float


@intrinsic
def dot4(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """``c`` plus the products of four signed bytes in each of two words (``dp4a``)."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(32)
        kind = ir.FunctionType(word, [word] * 3)
        assembly = ir.InlineAsm(kind, "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r")
        return builder.call(assembly, args)

    return types.int32(types.int32, types.int32, types.int32), codegen
