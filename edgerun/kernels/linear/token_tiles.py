"""Inner loop of the linear kernels with one scale a row for a single token: decoding.

Four weight rows are read side by side, each as a stream of its own. The order of the
instructions is fixed by fences, row after row: left alone, the compiler loads activations once
for all rows and interleaves these, and runs out of registers for the sums.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.lang.dot import total_type
from edgerun.kernels.lang.simd import Vec
from edgerun.kernels.lang.tiles import sum_lanes
from edgerun.kernels.linear.row_tiles import Offsets, Shape, TileBuilder, literals

_I64, _I32 = ir.IntType(64), ir.IntType(32)
ROWS = 4


@intrinsic(prefer_literal=True)
def token_tile(typingctx, w, w_stride, x, tiles, out, out_stride, bits, lanes, isa):  # type: ignore[no-untyped-def]
    """Sums of code times activation over all of K, int32, of four weight rows.

    ``w`` is the address of the first row's first vector, ``x`` of the token's codes; the result
    of row r goes to ``out + r * out_stride``, in bytes.
    """
    values = literals(bits, lanes, isa)
    if values is None:
        return None
    shape = Shape(ROWS, 1, values[0], values[1], paired=values[0] == 2)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        zero = ir.Constant(_I64, 0)
        tile = TileBuilder(builder, shape, values[2], [args[0], args[1], args[2], zero])
        sums = _TokenSums(tile)
        sums.add_tiles(args[3])
        total = sum_lanes(builder, [builder.load(one) for one in sums.totals], shape.lanes // 4)[0]
        total = builder.ashr(total, ir.Constant(total.type, [shape.bits * shape.paired] * ROWS))
        for row in range(ROWS):
            place = builder.add(args[4], builder.mul(args[5], ir.Constant(_I64, row)))
            one = builder.extract_element(total, ir.Constant(_I32, row))
            builder.store(one, builder.inttoptr(place, _I32.as_pointer()))
        return context.get_dummy_value()

    addresses = [types.intp] * 6
    return types.void(*addresses, bits, lanes, isa), codegen


class _TokenSums:
    """Sums of four rows; of 2-bit codes those of even and of odd planes apart.

    Odd planes are not shifted down: they count ``1 << bits`` times, and in the end so does all.
    """

    def __init__(self, tile: TileBuilder) -> None:
        self.tile, self.shape = tile, tile.shape
        self.totals = tile.zeros(total_type(tile.shape.lanes), ROWS)
        self.sets = [
            tile.zeros(tile.dots.partial(tile.shape.lanes), ROWS)
            for _ in range(1 + tile.shape.paired)
        ]
        self.offsets = Offsets(tile)

    def add_tiles(self, count: Any) -> None:
        """Adds tiles; the sets are folded as often as they have to be."""
        depth = self.tile.dots.depth(self.shape.bits)
        long = depth * len(self.sets) // self.shape.planes
        if not depth:
            self._add_and_fold(count, range(len(self.sets)))
        elif not self.shape.paired:
            self._in_spans(count, max(1, long), lambda some: self._add_and_fold(some, [0]))
        else:  # odd planes are as many times larger
            short = long >> self.shape.bits
            self._in_spans(count, long // short * short, lambda some: self._long_span(some, short))
        self.offsets.subtract(self.totals)

    def _in_spans(self, count: Any, span: int, add: Any) -> None:
        builder, size = self.tile.builder, ir.Constant(_I64, span)
        with cgutils.for_range(builder, builder.udiv(count, size), intp=_I64):
            add(size)
        rest = builder.urem(count, size)
        with builder.if_then(builder.icmp_unsigned("!=", rest, ir.Constant(_I64, 0))):
            add(rest)

    def _long_span(self, count: Any, short: int) -> None:
        self._in_spans(count, short, lambda some: self._add_and_fold(some, [1]))
        self._fold(0)

    def _add_and_fold(self, count: Any, sets: Any) -> None:
        with cgutils.for_range(self.tile.builder, count, intp=_I64):
            self._add_tile()
        for index in sets:
            self._fold(index)

    def _fold(self, index: int) -> None:
        factor = 1 << self.shape.bits if self.shape.paired and index == 0 else 1
        self.tile.fold(self.totals, self.sets[index], factor)

    def _add_tile(self) -> None:
        """Adds the products of one tile, row after row.

        Activations are read again for every row, from the first-level cache.
        """
        tile, builder, shape = self.tile, self.tile.builder, self.shape
        start, x = builder.load(tile.w), builder.load(tile.x)
        for row in range(ROWS):
            builder.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], side_effect=True)
            place = builder.add(start, builder.mul(tile.w_stride, ir.Constant(_I64, row)))
            vector = tile.vector(place, Vec("u8", shape.lanes).llvm)
            for plane in range(shape.planes):
                codes = tile.plane([vector], plane)[0]
                place = builder.add(x, ir.Constant(_I64, plane * shape.lanes))
                activations = tile.vector(place, Vec("i8", shape.lanes).llvm)
                if row == 0:
                    self.offsets.add([activations])
                cell = self.sets[plane % len(self.sets)][row]
                total = tile.dots.add(builder, builder.load(cell), codes, activations, shape.lanes)
                builder.store(total, cell)
        tile.advance(tile.w, shape.lanes)
        tile.advance(tile.x, shape.planes * shape.lanes)
