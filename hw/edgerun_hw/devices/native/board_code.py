"""``exchange`` on a board, as native code; see ``exchange.py``."""

from __future__ import annotations

from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic

from edgerun.kernels.lang.intrinsics import nanoseconds, pause
from edgerun.kernels.lang.ir import I32, I64, declare, pointer
from edgerun.kernels.lang.word import set_word, word
from edgerun_hw.devices.native.exchange import (
    ANSWER,
    ASKED,
    FIRST,
    FLUSH,
    INVALIDATE,
    READ,
    SECOND,
    WAIT,
    WRITE,
)
from edgerun_hw.devices.native.memory import FROM_DEVICE, TO_DEVICE

# Words of the context.
REGISTERS, TO_FILE, FROM_FILE, NANOSECONDS = range(4)
TEXT_BYTES = 18  # 0x and sixteen digits


@intrinsic
def _load_register(typingctx, address):  # type: ignore[no-untyped-def]
    """Reads 32 bits in one access, in the order of the program."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        value = builder.load_atomic(pointer(builder, args[0], I32), "seq_cst", 4)
        return builder.zext(value, I64)

    return types.int64(types.intp), codegen


@intrinsic
def _store_register(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Writes 32 bits in one access, in the order of the program."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        narrow = builder.trunc(args[1], I32)
        builder.store_atomic(narrow, pointer(builder, args[0], I32), "seq_cst", 4)
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), codegen


@intrinsic
def _write_number(typingctx, file, number):  # type: ignore[no-untyped-def]
    """Writes a number as ``0x`` and sixteen digits to the start of a file, in one call."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        with builder.goto_entry_block():
            text = builder.alloca(ir.ArrayType(ir.IntType(8), TEXT_BYTES))
        digits = [ir.Constant(ir.IntType(8), ord(letter)) for letter in "0x"]
        for place in range(TEXT_BYTES - 2):
            shift = ir.Constant(I64, 4 * (TEXT_BYTES - 3 - place))
            digit = builder.and_(builder.lshr(args[1], shift), ir.Constant(I64, 15))
            letter = builder.icmp_unsigned(">", digit, ir.Constant(I64, 9))
            start = builder.select(
                letter, ir.Constant(I64, ord("A") - 10), ir.Constant(I64, ord("0"))
            )
            digits.append(builder.trunc(builder.add(digit, start), ir.IntType(8)))
        for place, value in enumerate(digits):
            where = builder.gep(text, [ir.Constant(I32, 0), ir.Constant(I32, place)])
            builder.store(value, where)
        function = declare(builder, "pwrite", I64, I32, I64, I64, I64)
        arguments = [builder.ptrtoint(text, I64), ir.Constant(I64, TEXT_BYTES)]
        descriptor = builder.trunc(args[0], I32)
        return builder.call(function, [descriptor, *arguments, ir.Constant(I64, 0)])

    return types.int64(types.int64, types.int64), codegen


@njit
def _synchronise(context, direction, start, length):  # type: ignore[no-untyped-def]
    """Has the kernel write back or drop cached bytes of the memory; -1 if it refuses."""
    file = word(context, TO_FILE) if direction == TO_DEVICE else word(context, FROM_FILE)
    written = _write_number(file, start << 32 | length | direction << 2 | 1)
    return 0 if written == TEXT_BYTES else -1


@cfunc("void(intp, intp)", nopython=True, cache=True)
def exchange(context: int, request: int) -> None:
    """Does what a request asks."""
    asked, first, second = word(request, ASKED), word(request, FIRST), word(request, SECOND)
    result = 0
    if asked == READ:
        result = _load_register(word(context, REGISTERS) + first)
    elif asked == WRITE:
        _store_register(word(context, REGISTERS) + first, second)
    elif asked == WAIT:
        end = nanoseconds() + (first * word(context, NANOSECONDS) >> 10)
        while nanoseconds() < end:
            pause()
    elif asked == FLUSH:
        result = _synchronise(context, TO_DEVICE, first, second)
    elif asked == INVALIDATE:
        result = _synchronise(context, FROM_DEVICE, first, second)
    set_word(request, ANSWER, result)
