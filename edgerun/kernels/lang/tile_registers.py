"""Tile registers of AMX: eight of 16 rows of 64 bytes, and the instructions on them.

``TILES`` has what emits an instruction, by instruction set: those of the processor, and a model
of them in plain vector code, so that whoever multiplies by tiles can be tested on any machine.
All rows are always in use: a product costs the same however few are, and setting the registers up
anew costs as much as thirteen products. So they are set up once for a depth, the bytes of a row
of activations; registers of codes then have a quarter as many rows, of 64 bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.lang.bfloat16 import PlainBfloat16
from edgerun.kernels.lang.ir import (
    I8,
    I32,
    I64,
    VOID,
    declare,
    fused,
    integer,
    literals,
    load_from,
    offset,
    shuffle,
    store_to,
    variable,
)
from edgerun.kernels.lang.simd import Vec, broadcast

SIDE = 16  # rows of a register, and dwords of a row
LINE = 64  # bytes of a row
TILE_BYTES = SIDE * LINE
SUMS, X, CODES = range(4), range(4, 6), range(6, 8)  # what registers are for
_PALETTE = 1  # eight registers of 1 KB
# Places in the 64 bytes of a configuration: bytes a row (16 bits each), then rows of a register.
_ROW_BYTES, _ROWS = 16, 48


def shapes(depth: int) -> dict[int, tuple[int, int]]:
    """Rows of each register and their bytes, for products over ``depth`` (at most 64) of K."""
    whole, x, codes = (SIDE, LINE), (SIDE, depth), (depth // 4, LINE)
    return dict.fromkeys(SUMS, whole) | dict.fromkeys(X, x) | dict.fromkeys(CODES, codes)


class TileRegisters(ABC):
    """Emits instructions on the registers; they are set up for ``depth``."""

    def __init__(self, builder: Any, depth: int) -> None:
        self.builder, self.depth = builder, depth

    @abstractmethod
    def configure(self) -> None:
        """Takes the registers, for this thread, and sets all to zero."""

    @abstractmethod
    def release(self) -> None:
        """Gives the registers up: the system need not save them any more."""

    @abstractmethod
    def zero(self, number: int) -> None:
        """Sets a register to zero."""

    @abstractmethod
    def load(self, number: int, address: Any, stride: int) -> None:
        """Reads a register; its rows are ``stride`` bytes apart."""

    @abstractmethod
    def store(self, number: int, address: Any, stride: int) -> None:
        """Writes a register likewise."""

    @abstractmethod
    def multiply(self, sums: int, x: int, codes: int, *, signed: bool) -> None:
        """Adds int32 products of signed bytes and of codes, which are signed or not."""

    @abstractmethod
    def multiply_bfloat16(self, sums: int, x: int, codes: int) -> None:
        """Adds float32 products of bfloat16, two of which lie where four bytes would.

        A sum gets those of all even elements, added up in order, plus those of all odd ones.
        Subnormal numbers count as zero.
        """


class Amx(TileRegisters):
    """The instructions of the processor."""

    def configure(self) -> None:
        content = [0] * LINE
        content[0] = _PALETTE
        for number, (rows, row_bytes) in shapes(self.depth).items():
            content[_ROW_BYTES + 2 * number] = row_bytes
            content[_ROWS + number] = rows
        kind = ir.ArrayType(I8, LINE)
        with self.builder.goto_entry_block():
            area = self.builder.alloca(kind)
        area.align = LINE
        self.builder.store(ir.Constant(kind, content), area)
        self._call("ldtilecfg", self.builder.bitcast(area, I8.as_pointer()))

    def release(self) -> None:
        self._call("tilerelease")

    def zero(self, number: int) -> None:
        self._call("tilezero", _register(number))

    def load(self, number: int, address: Any, stride: int) -> None:
        self._call("tileloadd64", _register(number), self._pointer(address), integer(stride))

    def store(self, number: int, address: Any, stride: int) -> None:
        self._call("tilestored64", _register(number), self._pointer(address), integer(stride))

    def multiply(self, sums: int, x: int, codes: int, *, signed: bool) -> None:
        name = "tdpbssd" if signed else "tdpbsud"
        self._call(name, *(_register(number) for number in (sums, x, codes)))

    def multiply_bfloat16(self, sums: int, x: int, codes: int) -> None:
        self._call("tdpbf16ps", *(_register(number) for number in (sums, x, codes)))

    def _pointer(self, address: Any) -> Any:
        return self.builder.inttoptr(address, I8.as_pointer())

    def _call(self, name: str, *values: Any) -> None:
        kinds = [value.type for value in values]
        self.builder.call(declare(self.builder, f"llvm.x86.{name}", VOID, *kinds), values)


class Model(TileRegisters):
    """What the instructions do, with registers in memory that last as long as this object."""

    def __init__(self, builder: Any, depth: int) -> None:
        super().__init__(builder, depth)
        self._shapes, self._places = shapes(depth), {}
        for number in self._shapes:
            with builder.goto_entry_block():
                area = builder.alloca(ir.ArrayType(I8, TILE_BYTES))
                self._places[number] = builder.ptrtoint(area, I64)

    def configure(self) -> None:
        pass

    def release(self) -> None:
        pass

    def zero(self, number: int) -> None:
        rows, row_bytes = self._shapes[number]
        empty = ir.Constant(Vec("i8", row_bytes).llvm, None)
        for row in range(rows):
            store_to(self.builder, empty, self._row(number, row))

    def load(self, number: int, address: Any, stride: int) -> None:
        rows, row_bytes = self._shapes[number]
        for row in range(rows):
            source = offset(self.builder, address, row * stride)
            line = load_from(self.builder, source, Vec("i8", row_bytes).llvm)
            store_to(self.builder, line, self._row(number, row))

    def store(self, number: int, address: Any, stride: int) -> None:
        rows, row_bytes = self._shapes[number]
        for row in range(rows):
            line = load_from(self.builder, self._row(number, row), Vec("i8", row_bytes).llvm)
            store_to(self.builder, line, offset(self.builder, address, row * stride))

    def multiply(self, sums: int, x: int, codes: int, *, signed: bool) -> None:
        builder, totals = self.builder, Vec("i32", SIDE)
        with cgutils.for_range(builder, integer(SIDE), intp=I64) as token:
            place = builder.add(self._places[sums], builder.mul(token.index, integer(LINE)))
            row = builder.add(self._places[x], builder.mul(token.index, integer(LINE)))
            total = variable(builder, load_from(builder, place, totals.llvm))
            with cgutils.for_range(builder, integer(self.depth // 4), intp=I64) as step:
                line = builder.add(self._places[codes], builder.mul(step.index, integer(LINE)))
                some = load_from(builder, line, Vec("i8", LINE).llvm)
                four = builder.add(row, builder.mul(step.index, integer(4)))
                for byte in range(4):
                    each = shuffle(builder, some, some, range(byte, LINE, 4))
                    widen = builder.sext if signed else builder.zext
                    value = load_from(builder, offset(builder, four, byte), I8)
                    factor = broadcast(builder, builder.sext(value, I32), totals)
                    product = builder.mul(widen(each, totals.llvm), factor)
                    builder.store(builder.add(builder.load(total), product), total)
            store_to(builder, builder.load(total), place)

    def multiply_bfloat16(self, sums: int, x: int, codes: int) -> None:
        builder, floats, plain = self.builder, Vec("f32", SIDE), PlainBfloat16(self.builder)
        zero = ir.Constant(floats.llvm, None)
        with cgutils.for_range(builder, integer(SIDE), intp=I64) as line:
            place = builder.add(self._places[sums], builder.mul(line.index, integer(LINE)))
            row = builder.add(self._places[x], builder.mul(line.index, integer(LINE)))
            halves = [variable(builder, zero) for _ in range(2)]
            with cgutils.for_range(builder, integer(self.depth // 4), intp=I64) as step:
                source = builder.add(self._places[codes], builder.mul(step.index, integer(LINE)))
                some = load_from(builder, source, Vec("i32", SIDE).llvm)
                pair = builder.add(row, builder.mul(step.index, integer(4)))
                both = broadcast(builder, load_from(builder, pair, I32), Vec("i32", SIDE))
                for part, half in enumerate(halves):
                    value, factor = (plain.half(each, part) for each in (some, both))
                    total = fused(builder, value, factor, builder.load(half))
                    builder.store(plain.flushed(total), half)
            total = plain.flushed(builder.fadd(*(builder.load(half) for half in halves)))
            before = plain.flushed(load_from(builder, place, floats.llvm))
            store_to(builder, plain.flushed(builder.fadd(before, total)), place)

    def _row(self, number: int, row: int) -> Any:
        return offset(self.builder, self._places[number], row * LINE)


def _register(number: int) -> Any:
    return ir.Constant(I8, number)


TILES: Mapping[str, type[TileRegisters]] = {"amx": Amx, "amx_model": Model}


def _setting(name: str, method: str, summary: str) -> Any:
    """Makes an intrinsic that takes the registers or gives them up."""

    def setting(typingctx, depth, isa):  # type: ignore[no-untyped-def]
        values = literals(depth, isa)
        if values is None:
            return None

        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            getattr(TILES[values[1]](builder, values[0]), method)()
            return context.get_dummy_value()

        return types.void(depth, isa), codegen

    setting.__name__, setting.__doc__ = name, summary
    return intrinsic(prefer_literal=True)(setting)


configure_tiles = _setting(
    "configure_tiles", "configure", "Takes the registers for products over ``depth`` of K."
)
release_tiles = _setting("release_tiles", "release", "Gives the registers up.")
