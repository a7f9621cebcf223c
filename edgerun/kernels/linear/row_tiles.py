"""Inner loops of the int8 linear kernels: a few weight rows times a few tokens.

Weights lie in the stream layout; the rows are ``w_stride`` bytes apart and are read side by
side, each as a stream of its own. Codes are unpacked once and meet the activations of all
``tokens``; sums stay in registers. Results go to a small array ``[tokens, rows]``. There is no
prefetching: the hardware follows the streams, and on Zen 3 prefetch instructions slow it down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.isa import isa_of
from edgerun.kernels.lang.dot import DOTS, total_type
from edgerun.kernels.lang.simd import ELEMENTS, Vec, constant, declare, pointer

_I64 = ir.IntType(64)
_F32 = ir.FloatType()


@dataclass(frozen=True)
class Shape:
    """Compile-time constants of a tile: weight rows, tokens, code bits, vector bytes.

    ``paired``: odd planes stay where they are in the byte, so that their sums count
    ``1 << bits`` times. That saves half of the shifts, for a second partial sum a cell.
    """

    rows: int
    tokens: int
    bits: int
    lanes: int
    paired: bool = False

    @property
    def planes(self) -> int:
        """Codes in a byte."""
        return 8 // self.bits

    @property
    def cells(self) -> list[tuple[int, int]]:
        """Pairs of token and row."""
        return [(t, r) for t in range(self.tokens) for r in range(self.rows)]


class TileBuilder:
    """Emits the loop over K; keeps the addresses of weights and activations."""

    def __init__(self, builder: Any, shape: Shape, isa: str, addresses: list[Any]) -> None:
        self.builder, self.shape, self.dots = builder, shape, DOTS[isa_of(isa).dots]
        w, self.w_stride, x, self.x_stride = addresses
        self.w, self.x = self.variable(_I64, w), self.variable(_I64, x)

    def variable(self, kind: Any, value: Any) -> Any:
        """A variable of the function; the optimiser keeps it in a register."""
        with self.builder.goto_entry_block():
            place = self.builder.alloca(kind)
        self.builder.store(value, place)
        return place

    def zeros(self, vec: Vec, count: int) -> list[Any]:
        """Variables with zero in every lane."""
        return [self.variable(vec.llvm, constant(vec, 0)) for _ in range(count)]

    def clear(self, variables: list[Any], vec: Vec) -> None:
        """Sets variables to zero."""
        for variable in variables:
            self.builder.store(constant(vec, 0), variable)

    def advance(self, place: Any, amount: int) -> None:
        """Adds to an address variable."""
        total = self.builder.add(self.builder.load(place), ir.Constant(_I64, amount))
        self.builder.store(total, place)

    def vector(self, address: Any, kind: Any) -> Any:
        """Loads from any address."""
        value = self.builder.load(pointer(self.builder, address, kind))
        value.align = 1
        return value

    def weights(self) -> list[Any]:
        """Loads the vectors of the rows in one tile and moves on."""
        return self._vectors(self.w, self.w_stride, self.shape.rows, "u8")

    def activations(self) -> list[Any]:
        """Loads one vector of every token and moves on."""
        return self._vectors(self.x, self.x_stride, self.shape.tokens, "i8")

    def plane(self, vectors: list[Any], plane: int) -> list[Any]:
        """Codes of one plane, prepared for multiplication."""
        builder, shape = self.builder, self.shape
        stay = plane % 2 * shape.bits * shape.paired
        shift = plane * shape.bits - stay
        codes = [self._shifted(one, shift) for one in vectors] if shift else vectors
        if shape.bits < 8:
            mask = constant(Vec("u8", shape.lanes), ((1 << shape.bits) - 1) << stay)
            codes = [builder.and_(one, mask) for one in codes]
        return [self.dots.prepare(builder, one, shape.lanes, shape.bits) for one in codes]

    def _shifted(self, codes: Any, shift: int) -> Any:
        """Bytes shifted to the right, with bits of the next byte above: one instruction on x86."""
        pairs = Vec("i16", self.shape.lanes // 2)
        words = self.builder.lshr(self.builder.bitcast(codes, pairs.llvm), constant(pairs, shift))
        return self.builder.bitcast(words, codes.type)

    def multiply(self, partials: list[Any], vectors: list[Any], plane: int) -> list[Any]:
        """Adds the products of one plane to the partial sums; returns the activations."""
        builder, shape = self.builder, self.shape
        codes, xs = self.plane(vectors, plane), self.activations()
        for cell, (t, r) in zip(partials, shape.cells, strict=True):
            total = self.dots.add(builder, builder.load(cell), codes[r], xs[t], shape.lanes)
            builder.store(total, cell)
        return xs

    def fold(self, totals: list[Any], partials: list[Any], factor: int = 1) -> None:
        """Moves partial sums into the int32 sums, ``factor`` times."""
        builder, lanes = self.builder, self.shape.lanes
        for total, partial in zip(totals, partials, strict=True):
            before = builder.load(total)
            value = self.dots.fold(builder, before, builder.load(partial), lanes, factor)
            builder.store(value, total)
        self.clear(partials, self.dots.partial(lanes))

    def finish(self, sums: list[Any], out: Any, kind: Any, add: Callable[[Any], Any]) -> None:
        """Stores the lane sums as elements of ``out``."""
        for index, variable in enumerate(sums):
            place = self.builder.add(out, ir.Constant(_I64, 4 * index))
            target = pointer(self.builder, place, kind)
            self.builder.store(add(self.builder.load(variable)), target)

    def _vectors(self, place: Any, stride: Any, count: int, element: str) -> list[Any]:
        builder, lanes = self.builder, self.shape.lanes
        start = builder.load(place)
        kind = Vec(element, lanes).llvm
        offsets = [builder.mul(stride, ir.Constant(_I64, index)) for index in range(count)]
        vectors = [self.vector(builder.add(start, offset), kind) for offset in offsets]
        self.advance(place, lanes)
        return vectors


class Offsets:
    """Sums of the activations times 128, for instruction sets that leave 8-bit codes unsigned."""

    def __init__(self, tile: TileBuilder) -> None:
        self.tile = tile
        self.needed = tile.dots.offset and tile.shape.bits == 8
        self.sums = tile.zeros(total_type(tile.shape.lanes), tile.shape.tokens * self.needed)

    def add(self, xs: list[Any]) -> None:
        """Takes note of the activations of one plane."""
        lanes, builder = self.tile.shape.lanes, self.tile.builder
        middle = ir.Constant(Vec("u8", lanes).llvm, [-128] * lanes)
        for place, x in zip(self.sums, xs, strict=False):
            builder.store(self.tile.dots.add(builder, builder.load(place), middle, x, lanes), place)

    def subtract(self, totals: list[Any]) -> None:
        """Corrects the sums and starts again."""
        builder = self.tile.builder
        if not self.needed:
            return
        for total, (t, _) in zip(totals, self.tile.shape.cells, strict=True):
            builder.store(builder.sub(builder.load(total), builder.load(self.sums[t])), total)
        self.tile.clear(self.sums, total_type(self.tile.shape.lanes))


def reduce_int(builder: Any, vector: Any) -> Any:
    """Sum of the lanes of an int32 vector."""
    count = vector.type.count
    name = f"llvm.vector.reduce.add.v{count}i32"
    return builder.call(declare(builder, name, ELEMENTS["i32"], vector.type), [vector])


def literals(*kinds: Any) -> list[Any] | None:
    """Values of literal types; None while any is not literal."""
    values = [getattr(kind, "literal_value", None) for kind in kinds]
    return None if None in values else values


@intrinsic(prefer_literal=True)
def row_tile(typingctx, w, w_stride, x, x_stride, tiles, out, rows, tokens, bits, lanes, isa):  # type: ignore[no-untyped-def]
    """Sums of code times activation over all of K, int32 ``out[tokens, rows]``.

    ``w`` is the address of the first row's first vector, ``x`` of the first token's codes.
    """
    values = literals(rows, tokens, bits, lanes, isa)
    if values is None:
        return None
    row_count, token_count, code_bits, vector_bytes = values[:4]
    shape = Shape(row_count, token_count, code_bits, vector_bytes)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        tile = TileBuilder(builder, shape, values[4], args[:4])
        totals = tile.zeros(total_type(shape.lanes), len(shape.cells))
        partials = tile.zeros(tile.dots.partial(shape.lanes), len(shape.cells))
        offsets = Offsets(tile)
        span = tile.dots.depth(shape.bits) // shape.planes  # tiles that fit a partial sum

        def some_tiles(count: Any) -> None:
            with cgutils.for_range(builder, count, intp=_I64):
                vectors = tile.weights()
                for plane in range(shape.planes):
                    offsets.add(tile.multiply(partials, vectors, plane))
            tile.fold(totals, partials)

        if span:
            whole = builder.udiv(args[4], ir.Constant(_I64, span))
            with cgutils.for_range(builder, whole, intp=_I64):
                some_tiles(ir.Constant(_I64, span))
            some_tiles(builder.urem(args[4], ir.Constant(_I64, span)))
        else:
            some_tiles(args[4])
        offsets.subtract(totals)
        tile.finish(totals, args[5], ELEMENTS["i32"], lambda value: reduce_int(builder, value))
        return context.get_dummy_value()

    addresses = [types.intp] * 6
    return types.void(*addresses, rows, tokens, bits, lanes, isa), codegen
