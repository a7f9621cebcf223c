"""Scalar access to argument blocks and arrays by address."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from edgerun.kernels.lang.ir import load_from, store_to


def _reader(name: str, kind: ir.Type, scalar: Any, size: int) -> Any:
    def read(typingctx, address, index):  # type: ignore[no-untyped-def]
        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            offset = builder.mul(args[1], ir.Constant(args[1].type, size))
            return load_from(builder, builder.add(args[0], offset), kind)

        return scalar(types.intp, types.intp), codegen

    read.__name__ = name
    read.__doc__ = f"Reads element ``index`` of an array of {scalar} at an address."
    return intrinsic(read)


def _writer(name: str, kind: ir.Type, scalar: Any, size: int) -> Any:
    def write(typingctx, address, index, value):  # type: ignore[no-untyped-def]
        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            offset = builder.mul(args[1], ir.Constant(args[1].type, size))
            store_to(builder, args[2], builder.add(args[0], offset))
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, scalar), codegen

    write.__name__ = name
    write.__doc__ = f"Writes element ``index`` of an array of {scalar} at an address."
    return intrinsic(write)


word = _reader("word", ir.IntType(64), types.int64, 8)
int_at = _reader("int_at", ir.IntType(32), types.int32, 4)
byte_at = _reader("byte_at", ir.IntType(8), types.uint8, 1)
float_at = _reader("float_at", ir.FloatType(), types.float32, 4)
double_at = _reader("double_at", ir.DoubleType(), types.float64, 8)
set_float = _writer("set_float", ir.FloatType(), types.float32, 4)
set_int = _writer("set_int", ir.IntType(32), types.int32, 4)
set_word = _writer("set_word", ir.IntType(64), types.int64, 8)
set_double = _writer("set_double", ir.DoubleType(), types.float64, 8)
