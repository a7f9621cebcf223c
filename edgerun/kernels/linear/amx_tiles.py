"""Matrix products of AMX: int32 ``sums[rows, 32] += x[rows, K] * codes[K, 32]``.

Activations are signed bytes, rows of any stride. Codes are unsigned bytes in the order of
``gemm.py``: for every four of K 32 dwords, each with the codes of one weight row. That is
the order in which the instruction wants its second operand, and rows of activations are just
what it wants as the first, so nothing is rearranged for it.

A tile register holds 16 rows of 64 bytes. Registers 0 to 3 are sums of 2 x 16 tokens and 2 x 16
weight rows, 4 and 5 activations, 6 and 7 codes: four products for four loads. The configuration
says how many rows a register has and how many bytes a row, so that tokens beyond the last are
neither read nor computed. It belongs to a thread, and ``release_tiles`` gives it up.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.lang.ir import declare, integer, literals
from edgerun.kernels.lang.word import byte_at, int_at, set_int

SIDE = 16  # rows of a tile register, and dwords of one of its rows
WIDTH = 2 * SIDE  # weight rows that are multiplied together
TOKENS = 2 * SIDE  # rows of activations likewise
LINE = 64  # bytes of a row
STEP_BYTES = WIDTH * 4  # codes of four of K, and a row of sums

_I8, _I32, _I64, _VOID = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.VoidType()
_POINTER = _I8.as_pointer()
# Places in the 64 bytes of a configuration: bytes a row (16 bits each), then rows of a register.
_ROW_BYTES, _ROWS = 16, 48
_SUMS, _X, _CODES = range(4), range(4, 6), range(6, 8)


def _call(builder: Any, name: str, *values: Any) -> None:
    kinds = [value.type for value in values]
    builder.call(declare(builder, f"llvm.x86.{name}", _VOID, *kinds), values)


def _at(builder: Any, base: Any, offset: int) -> Any:
    return builder.inttoptr(builder.add(base, integer(offset)), _POINTER)


def _cells(groups: int) -> list[tuple[int, int, int]]:
    """Groups of tokens, halves of the weight rows, and the register of their sums."""
    return [(t, v, 2 * t + v) for t in range(groups) for v in range(2)]


def _register(number: int) -> Any:
    return ir.Constant(_I8, number)


def _settings(depth: int) -> list[int]:
    """A configuration for products over ``depth`` of K, with all rows."""
    content = [0] * 64
    content[0] = 1  # the palette of eight tiles of 1 KB
    for registers, rows, row_bytes in (
        (_SUMS, SIDE, LINE),
        (_X, SIDE, depth),
        (_CODES, depth // 4, LINE),
    ):
        for number in registers:
            content[_ROW_BYTES + 2 * number] = row_bytes
            content[_ROWS + number] = rows
    return content


@intrinsic(prefer_literal=True)
def configure_tiles(typingctx, tokens, depth):  # type: ignore[no-untyped-def]
    """Sets the registers for products over ``depth`` (at most 64) of K and clears them.

    ``tokens`` (1 to 16) is the number of rows of each register with sums or activations.
    """
    values = literals(depth)
    if values is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        kind = ir.ArrayType(_I8, 64)
        with builder.goto_entry_block():
            area = builder.alloca(kind)
        area.align = 64
        builder.store(ir.Constant(kind, _settings(values[0])), area)
        rows = builder.trunc(args[0], _I8)
        for number in (*_SUMS, *_X):
            place = [ir.Constant(_I32, 0), ir.Constant(_I32, _ROWS + number)]
            builder.store(rows, builder.gep(area, place))
        _call(builder, "ldtilecfg", builder.bitcast(area, _POINTER))
        return context.get_dummy_value()

    return types.void(types.intp, depth), codegen


@intrinsic
def release_tiles(typingctx):  # type: ignore[no-untyped-def]
    """Gives up the registers: the system need not save them any more."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        _call(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic(prefer_literal=True)
def multiply_tiles(typingctx, codes, x, stride, steps, sums, fresh, groups, depth):  # type: ignore[no-untyped-def]
    """Adds products over ``steps * depth`` of K to int32 ``sums[tokens, 32]``, or to zeros.

    ``x`` is int8 with rows ``stride`` bytes apart; ``groups`` (1 or 2) is the number of groups of
    16 tokens, or of as many as the registers have rows. ``fresh`` is 1 to start from zeros.
    """
    values = literals(fresh, groups, depth)
    if values is None:
        return None
    from_zero, count, size = values
    cells = _cells(count)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        def at(base: Any, offset: int) -> Any:
            return _at(builder, base, offset)

        first_codes, first_x, x_stride, number, target = args[:5]
        step_bytes = integer(STEP_BYTES)
        places = [at(target, t * SIDE * STEP_BYTES + v * LINE) for t, v, _ in cells]
        for (_, _, cell), place in zip(cells, places, strict=True):
            if from_zero:
                _call(builder, "tilezero", _register(cell))
            else:
                _call(builder, "tileloadd64", _register(cell), place, step_bytes)
        with cgutils.for_range(builder, number, intp=_I64) as loop:
            w = builder.add(first_codes, builder.mul(loop.index, integer(size * WIDTH)))
            x = builder.add(first_x, builder.mul(loop.index, integer(size)))
            for v in range(2):
                _call(builder, "tileloadd64", _register(_CODES[v]), at(w, v * LINE), step_bytes)
            for t in range(count):
                row = builder.add(x, builder.mul(x_stride, integer(t * SIDE)))
                _call(builder, "tileloadd64", _register(_X[t]), at(row, 0), x_stride)
            for t, v, cell in cells:
                operands = [_register(number) for number in (cell, _X[t], _CODES[v])]
                _call(builder, "tdpbsud", *operands)
        for (_, _, cell), place in zip(cells, places, strict=True):
            _call(builder, "tilestored64", _register(cell), place, step_bytes)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 5, fresh, groups, depth), codegen


@intrinsic
def spin_tiles(typingctx, codes, x, repeats, sums):  # type: ignore[no-untyped-def]
    """``sums[32, 32] = repeats * x[32, 64] * codes[64, 32]``, without a load in between.

    For timing: the registers are configured for 16 rows and 64 of K.
    """

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        step_bytes, line = integer(STEP_BYTES), integer(LINE)
        for v in range(2):
            place = _at(builder, args[0], v * LINE)
            _call(builder, "tileloadd64", _register(_CODES[v]), place, step_bytes)
            place = _at(builder, args[1], v * SIDE * LINE)
            _call(builder, "tileloadd64", _register(_X[v]), place, line)
        for _, _, cell in _cells(2):
            _call(builder, "tilezero", _register(cell))
        with cgutils.for_range(builder, args[2], intp=_I64):
            for t, v, cell in _cells(2):
                operands = [_register(number) for number in (cell, _X[t], _CODES[v])]
                _call(builder, "tdpbsud", *operands)
        for t, v, cell in _cells(2):
            place = _at(builder, args[3], t * SIDE * STEP_BYTES + v * LINE)
            _call(builder, "tilestored64", _register(cell), place, step_bytes)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4), codegen


@njit(inline="always")
def amx_products(codes, x, stride, steps, rows, sums, fresh, depth):  # type: ignore[no-untyped-def]
    """The product for up to 32 tokens; the registers are configured, for 16 rows."""
    rest = rows % SIDE
    if rows == TOKENS:
        multiply_tiles(codes, x, stride, steps, sums, fresh, 2, depth)
    elif rows > SIDE - 1:
        multiply_tiles(codes, x, stride, steps, sums, fresh, 1, depth)
    if rest != 0:
        done = rows - rest
        configure_tiles(rest, depth)
        first, target = x + done * stride, sums + done * STEP_BYTES
        multiply_tiles(codes, first, stride, steps, target, fresh, 1, depth)
        configure_tiles(SIDE, depth)


@njit
def model_products(codes, x, stride, steps, rows, sums, fresh, depth):  # type: ignore[no-untyped-def]
    """The same in plain arithmetic, so that its callers can be tested on any machine."""
    for t in range(rows):
        for n in range(WIDTH):
            total = 0 if fresh else int_at(sums, t * WIDTH + n)
            for k in range(steps * depth):
                activation = byte_at(x, t * stride + k)
                code = byte_at(codes, (k // 4 * WIDTH + n) * 4 + k % 4)
                total += code * (activation - (activation >> 7) * 256)
            set_int(sums, t * WIDTH + n, total)


@njit
def spin_model(codes, x, repeats, sums):  # type: ignore[no-untyped-def]
    """``spin_tiles`` in plain arithmetic."""
    for repeat in range(repeats):
        model_products(codes, x, LINE, 1, TOKENS, sums, repeat == 0, LINE)


@njit
def configure_nothing(tokens, depth):  # type: ignore[no-untyped-def]
    """Stands for ``configure_tiles``."""


@njit
def release_nothing():  # type: ignore[no-untyped-def]
    """Stands for ``release_tiles``."""


# By instruction set: the functions that configure registers, multiply, and give registers up.
UNITS = {
    "amx": (configure_tiles, amx_products, release_tiles),
    "amx_model": (configure_nothing, model_products, release_nothing),
}
# What keeps the unit busy from its registers.
SPINNERS = {"amx": spin_tiles, "amx_model": spin_model}
