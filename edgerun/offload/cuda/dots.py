"""Dot products of four bytes: the instruction that GPUs have since sm_61, and its portable twin.

Both take signed bytes in int32 words and add to an int32; sums of a block of weights fit easily.
Functions that kernels call are inlined by Numba: else it would ask for a GPU when it compiles.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import cuda, types


def instruction() -> Any:
    """``dp4a`` as PTX has it; for real compilers only."""
    from numba.cuda.extending import intrinsic

    @intrinsic
    def dp4a(typingctx, a, b, c):  # type: ignore[no-untyped-def]
        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            word = ir.IntType(32)
            kind = ir.FunctionType(word, [word] * 3)
            assembly = ir.InlineAsm(kind, "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r")
            return builder.call(assembly, args)

        return types.int32(types.int32, types.int32, types.int32), codegen

    return dp4a


def portable() -> Any:
    """The same in plain arithmetic, which the simulator runs, too."""

    @cuda.jit(device=True, inline="always")
    def dot4(a, b, c):  # type: ignore[no-untyped-def]
        total = c
        for place in range(0, 32, 8):
            left, right = (a >> place) & 255, (b >> place) & 255
            left, right = left - ((left & 128) << 1), right - ((right & 128) << 1)
            total += left * right
        return total

    return dot4
