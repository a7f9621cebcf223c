"""Integer dot products, the only place that knows instruction sets.

``dot(acc, codes, x, bits, isa)`` adds to each int32 lane of ``acc`` four products of an unsigned
weight code and a signed activation. For 8-bit codes the zero point 128 is subtracted first. No
variant saturates: codes of up to 4 bits stay below 2 * 15 * 127, and 8-bit weights go through
``|w| * sign(w) x`` with activations in [-127, 127], below 2 * 128 * 127 < 2 ** 15.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from edgerun.kernels.simd import Vec, constant, declare

_MADD = {
    16: ("llvm.x86.ssse3.pmadd.ub.sw.128", "llvm.x86.sse2.pmadd.wd"),
    32: ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
}
_SIGN = {16: "llvm.x86.ssse3.psign.b.128", 32: "llvm.x86.avx2.psign.b"}


def _bytes_vector(lanes: int) -> ir.VectorType:
    return ir.VectorType(ir.IntType(8), lanes)


def _dot_portable(builder: Any, acc: Any, codes: Any, x: Any, lanes: int, bits: int) -> Any:
    wide = ir.VectorType(ir.IntType(32), lanes)
    left = builder.zext(codes, wide)
    if bits == 8:
        left = builder.sub(left, ir.Constant(wide, [128] * lanes))
    products = builder.mul(left, builder.sext(x, wide))
    undefined = ir.Constant(wide, ir.Undefined)
    index = ir.VectorType(ir.IntType(32), lanes // 4)
    for offset in range(4):
        mask = ir.Constant(index, list(range(offset, lanes, 4)))
        acc = builder.add(acc, builder.shuffle_vector(products, undefined, mask))
    return acc


def _dot_avx2(builder: Any, acc: Any, codes: Any, x: Any, lanes: int, bits: int) -> Any:
    narrow = _bytes_vector(lanes)
    if bits == 8:
        signed = builder.xor(codes, ir.Constant(narrow, [-128] * lanes))
        sign = declare(builder, _SIGN[lanes], narrow, narrow, narrow)
        x = builder.call(sign, [x, signed])
        flag = ir.Constant(ir.IntType(1), 0)
        name = f"llvm.abs.v{lanes}i8"
        codes = builder.call(declare(builder, name, narrow, narrow, flag.type), [signed, flag])
    half = ir.VectorType(ir.IntType(16), lanes // 2)
    pairs_name, quads_name = _MADD[lanes]
    pairs = builder.call(declare(builder, pairs_name, half, narrow, narrow), [codes, x])
    ones = ir.Constant(half, [1] * (lanes // 2))
    return builder.add(
        acc, builder.call(declare(builder, quads_name, acc.type, half, half), [pairs, ones])
    )


def _dot_vnni(builder: Any, acc: Any, codes: Any, x: Any, lanes: int, bits: int) -> Any:
    narrow = _bytes_vector(lanes)
    name = f"llvm.x86.avx512.vpdpbusd.{lanes * 8}"
    function = declare(builder, name, acc.type, acc.type, narrow, narrow)
    total = builder.call(function, [acc, codes, x])
    if bits != 8:
        return total
    zero = ir.Constant(acc.type, [0] * (lanes // 4))
    middle = ir.Constant(narrow, [-128] * lanes)
    return builder.sub(total, builder.call(function, [zero, middle, x]))


DOTS: dict[str, Callable[..., Any]] = {
    "avx512vnni": _dot_vnni,
    "avx2": _dot_avx2,
    "portable": _dot_portable,
}


@intrinsic(prefer_literal=True)
def dot(typingctx, acc, codes, x, bits, isa):  # type: ignore[no-untyped-def]
    """Adds four products of code and activation to each int32 lane; see the module."""
    literal = isinstance(bits, types.IntegerLiteral) and isinstance(isa, types.StringLiteral)
    if not (literal and isinstance(acc, Vec) and isinstance(codes, Vec) and isinstance(x, Vec)):
        return None
    lower = DOTS[isa.literal_value]

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return lower(builder, args[0], args[1], args[2], codes.lanes, bits.literal_value)

    return acc(acc, codes, x, bits, isa), codegen


@intrinsic(prefer_literal=True)
def sum4(typingctx, acc, x, isa):  # type: ignore[no-untyped-def]
    """Adds four signed bytes of ``x`` to each int32 lane of ``acc``."""
    if not (isinstance(isa, types.StringLiteral) and isinstance(acc, Vec) and isinstance(x, Vec)):
        return None
    lower = DOTS[isa.literal_value]

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        ones = constant(Vec("u8", x.lanes), 1)
        return lower(builder, args[0], ones, args[1], x.lanes, 2)

    return acc(acc, x, isa), codegen
