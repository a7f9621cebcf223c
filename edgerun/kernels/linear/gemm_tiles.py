"""Inner loops of the integer matrix products (``gemm.py``).

Weight rows lie in the lanes: a dword of a vector holds ``K_STEP`` consecutive codes of one row,
the next dword those of the next row. A broadcast of as many activations of one token multiplies
them all, sums of a row stay in the row's lane, and results are vectors of outputs: nothing is
added across lanes, and scales apply to whole vectors.

Codes come from ``unpack_rows`` (``gemm_unpack.py``), one byte each. They are multiplied by a few
tokens: ``gemm_row_tile`` adds int32 sums to ``sums [tokens, rows]``, ``gemm_block_tile`` scaled
float32 sums.
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
from edgerun.kernels.lang.dot import DOTS, DOTS_IN_ORDER, total_type
from edgerun.kernels.lang.simd import Vec, broadcast, constant, declare, pointer
from edgerun.kernels.linear.gemm_unpack import address, literals, load_any, prefetch

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
K_STEP = 4  # codes of one row in a dword
UNROLL = 8  # steps in a loop's body, at most


def parts(bits: int, isa: str) -> int:
    """Pieces that a code is multiplied in.

    Where sums of two products of 8-bit codes fill 16 bits, halves of the codes are faster: their
    sums are added up eight times before they are widened.
    """
    return 2 if DOTS[isa_of(isa).dots].depth(bits) == 1 else 1


def zero_point(bits: int, isa: str) -> int:
    """What codes are above the weights they stand for, as the tiles multiply them."""
    centred = bits == 8 and not DOTS[isa_of(isa).dots].offset and parts(bits, isa) == 1
    return 0 if centred else 1 << (bits - 1)


@dataclass(frozen=True)
class GemmShape:
    """Compile-time constants of a tile: vectors of weight rows, tokens, code bits, vector bytes.

    ``run`` is the number of steps that ``unpack_rows`` leaves between the parts of a code.
    """

    vectors: int
    tokens: int
    bits: int
    lanes: int
    run: int
    isa: str

    @property
    def cells(self) -> list[tuple[int, int]]:
        """Pairs of token and vector of rows."""
        return [(t, v) for t in range(self.tokens) for v in range(self.vectors)]

    @property
    def step_bytes(self) -> int:
        """Bytes of codes that one step reads."""
        return self.vectors * self.lanes

    @property
    def parts(self) -> int:
        """Pieces of a code."""
        return parts(self.bits, self.isa)

    @property
    def part_bits(self) -> int:
        """Bits of a piece."""
        return self.bits // self.parts

    def unit(self, most: int) -> int:
        """Steps between foldings, a power of two up to ``most``."""
        limit = DOTS[isa_of(self.isa).dots].depth(self.part_bits) or most
        limit = min(limit, most, self.run if self.parts > 1 else most)
        return 1 << (limit.bit_length() - 1)


class GemmBuilder:
    """Emits steps along K of one tile; keeps the addresses of codes and activations."""

    def __init__(self, builder: Any, shape: GemmShape, addresses: list[Any]) -> None:
        self.builder, self.shape, self.dots = builder, shape, DOTS_IN_ORDER[isa_of(shape.isa).dots]
        w, x, self.x_stride, last = addresses
        self.w = self.variable(_I64, w)
        self.tokens = [self._token(index, last) for index in range(shape.tokens)]
        self.x = [
            self.variable(_I64, builder.add(x, builder.mul(token, self.x_stride)))
            for token in self.tokens
        ]
        self.partial = self.dots.partial(shape.lanes)
        self.partials = [
            self.variable(self.partial.llvm, constant(self.partial, 0)) for _ in shape.cells
        ]

    def _token(self, index: int, last: Any) -> Any:
        """Number of a token; what lies beyond the last one is read as the last."""
        inside = self.builder.icmp_signed("<", address(index), last)
        return self.builder.select(inside, address(index), last)

    def variable(self, kind: Any, value: Any) -> Any:
        """A variable of the function; the optimiser keeps it in a register."""
        with self.builder.goto_entry_block():
            place = self.builder.alloca(kind)
        self.builder.store(value, place)
        return place

    def start(self, values: list[Any] | None = None) -> None:
        """Sets the partial sums, to zero unless told."""
        zero = constant(self.partial, 0)
        for index, place in enumerate(self.partials):
            self.builder.store(values[index] if values else zero, place)

    def steps(self, count: int) -> None:
        """Adds the products of ``count`` steps, which is a compile-time constant."""
        unroll = min(count, UNROLL)
        if count == unroll:
            self._unrolled(count)
            return
        with cgutils.for_range(self.builder, address(count // unroll), intp=_I64):
            self._unrolled(unroll)

    def unit(self, count: int, fold: Callable[[int], None]) -> None:
        """Sums of ``count`` steps; ``fold(factor)`` moves partial sums on, part by part."""
        for part in range(self.shape.parts):
            if part:
                for place in self.x:
                    back = self.builder.sub(self.builder.load(place), address(count * K_STEP))
                    self.builder.store(back, place)
            self.start()
            self.steps(count)
            fold(1 << (part * self.shape.part_bits))

    def _unrolled(self, count: int) -> None:
        builder, shape = self.builder, self.shape
        codes = Vec("u8", shape.lanes).llvm
        w, xs = builder.load(self.w), [builder.load(x) for x in self.x]
        self._prefetch(xs)
        for step in range(count):
            prepared = []
            for vector in range(shape.vectors):
                offset = address(step * shape.step_bytes + vector * shape.lanes)
                value = load_any(builder, builder.add(w, offset), codes)
                prepared.append(self.dots.prepare(builder, value, shape.lanes, shape.part_bits))
            for t, x in enumerate(xs):
                value = self._spread(builder.add(x, address(step * K_STEP)))
                for v in range(shape.vectors):
                    place = self.partials[t * shape.vectors + v]
                    total = self.dots.add(
                        builder, builder.load(place), prepared[v], value, shape.lanes
                    )
                    builder.store(self._in_order(total), place)
        builder.store(builder.add(w, address(count * shape.step_bytes)), self.w)
        for x, place in zip(xs, self.x, strict=True):
            builder.store(builder.add(x, address(count * K_STEP)), place)

    def _spread(self, place: Any) -> Any:
        """The next activations of a token, in every dword."""
        dwords = Vec("i32", self.shape.lanes // 4)
        value = broadcast(self.builder, load_any(self.builder, place, _I32), dwords)
        return self.builder.bitcast(value, Vec("i8", self.shape.lanes).llvm)

    def _prefetch(self, xs: list[Any]) -> None:
        """Fetches what the next tile reads of the activations."""
        ahead = self.builder.mul(self.x_stride, address(self.shape.tokens))
        for x in xs:
            prefetch(self.builder, self.builder.add(x, ahead))

    def _in_order(self, value: Any) -> Any:
        """The value, hidden from the optimiser.

        It would turn the chain of additions of a cell into a tree, which needs more registers
        than there are.
        """
        if not self.dots.depth(self.shape.part_bits):
            return value
        kind = ir.FunctionType(value.type, [value.type])
        return self.builder.call(ir.InlineAsm(kind, "", "=x,0"), [value])

    def fold(self, cell: int, total: Any, factor: int = 1) -> Any:
        """An int32 vector plus ``factor`` times the partial sum of a cell."""
        partial = self.builder.load(self.partials[cell])
        return self.dots.fold(self.builder, total, partial, self.shape.lanes, factor)


@intrinsic(prefer_literal=True)
def gemm_row_tile(  # type: ignore[no-untyped-def]
    typingctx, w, x, x_stride, last, count, sums, vectors, tokens, bits, lanes, run, isa
):
    """Adds the sums of code times activation over ``count`` codes of K to int32 ``sums``."""
    values = literals(vectors, tokens, bits, lanes, run, isa)
    if values is None:
        return None
    shape = GemmShape(*values)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        tile = GemmBuilder(builder, shape, args[:4])
        kind = total_type(shape.lanes).llvm

        def fold(factor: int) -> None:
            for cell in range(len(shape.cells)):
                at = builder.add(args[5], address(cell * shape.lanes))
                total = tile.fold(cell, load_any(builder, at, kind), factor)
                builder.store(total, pointer(builder, at, kind)).align = 1

        narrow = tile.dots.depth(shape.part_bits) > 0
        unit = shape.unit(shape.run * 8 // shape.bits if narrow else min(shape.run, UNROLL))
        number = builder.udiv(args[4], address(unit * K_STEP))
        with cgutils.for_range(builder, number, intp=_I64):
            if narrow:
                tile.unit(unit, fold)
            else:
                tile.steps(unit)
        if not narrow:
            fold(1)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 6, vectors, tokens, bits, lanes, run, isa), codegen


@intrinsic(prefer_literal=True)
def gemm_block_tile(  # type: ignore[no-untyped-def]
    typingctx,
    w,
    x,
    x_stride,
    last,
    scales,
    x_scale,
    x_sum,
    x_blocks,
    blocks,
    sums,
    vectors,
    tokens,
    bits,
    lanes,
    run,
    isa,
    block,
):
    """Adds scaled sums over ``blocks`` blocks of K to float32 ``sums``.

    ``scales`` is float32 ``[blocks, vectors, lanes / 4]``; ``x_scale`` (float32) and ``x_sum``
    (int32, sums of the codes) belong to the first token and block, tokens ``x_blocks`` elements
    apart.
    """
    values = literals(vectors, tokens, bits, lanes, run, isa, block)
    if values is None:
        return None
    shape, steps = GemmShape(*values[:6]), values[6] // K_STEP

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        tile = GemmBuilder(builder, shape, args[:4])
        scaling = _Scaling(tile, args[4:8], args[9])
        with cgutils.for_range(builder, args[8], intp=_I64) as loop:
            totals = scaling.offsets(loop.index)
            if tile.dots.depth(shape.part_bits):
                totals = _folded(tile, totals, steps)
            else:
                tile.start(totals)
                tile.steps(steps)
                totals = [builder.load(place) for place in tile.partials]
            scaling.add(loop.index, totals)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 10, vectors, tokens, bits, lanes, run, isa, block), codegen


def _folded(tile: GemmBuilder, totals: list[Any], steps: int) -> list[Any]:
    """Totals of a block, where partial sums are narrow."""
    unit = tile.shape.unit(steps)

    def fold(factor: int) -> None:
        totals[:] = [tile.fold(cell, total, factor) for cell, total in enumerate(totals)]

    for _number in range(steps // unit):
        tile.unit(unit, fold)
    return totals


class _Scaling:
    """Zero points and scales of the blocks of a tile."""

    def __init__(self, tile: GemmBuilder, addresses: list[Any], sums: Any) -> None:
        self.tile, self.sums = tile, sums
        self.scales, x_scale, x_sum, x_blocks = addresses
        builder = tile.builder
        rows = [builder.shl(builder.mul(t, x_blocks), address(2)) for t in tile.tokens]
        self.x_scales = [builder.add(x_scale, row) for row in rows]
        self.x_sums = [builder.add(x_sum, row) for row in rows]
        self.middle = zero_point(tile.shape.bits, tile.shape.isa)
        self.floats = Vec("f32", tile.shape.lanes // 4)

    def offsets(self, block: Any) -> list[Any]:
        """What the sums of a block start from, by cell: the zero point's part, negated."""
        tile, builder = self.tile, self.tile.builder
        kind = total_type(tile.shape.lanes)
        values = []
        for start in self.x_sums:
            value = constant(kind, 0)
            if self.middle:
                count = load_any(builder, self._at(start, block), _I32)
                value = builder.mul(broadcast(builder, count, kind), constant(kind, -self.middle))
            values += [value] * tile.shape.vectors
        return values

    def add(self, block: Any, totals: list[Any]) -> None:
        """Scales the integer sums of a block and adds them up."""
        tile, builder, kind = self.tile, self.tile.builder, self.floats.llvm
        shape = tile.shape
        place = builder.add(self.scales, builder.mul(block, address(shape.step_bytes)))
        rows = [
            load_any(builder, builder.add(place, address(v * shape.lanes)), kind)
            for v in range(shape.vectors)
        ]
        name = f"llvm.fmuladd.v{self.floats.lanes}f32"
        fma = declare(builder, name, kind, kind, kind, kind)
        for t, start in enumerate(self.x_scales):
            scale = broadcast(builder, load_any(builder, self._at(start, block), _F32), self.floats)
            for v in range(shape.vectors):
                cell = t * shape.vectors + v
                at = builder.add(self.sums, address(cell * shape.lanes))
                factor = builder.fmul(rows[v], scale)
                value = builder.sitofp(totals[cell], kind)
                total = builder.call(fma, [value, factor, load_any(builder, at, kind)])
                builder.store(total, pointer(builder, at, kind)).align = 1

    def _at(self, start: Any, block: Any) -> Any:
        return self.tile.builder.add(start, self.tile.builder.shl(block, address(2)))
