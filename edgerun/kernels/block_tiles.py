"""Inner loops of the linear kernels with block scales: each block is scaled to float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.dot import total_type
from edgerun.kernels.linear_tiles import Offsets, Shape, TileBuilder, literals
from edgerun.kernels.simd import ELEMENTS, Vec, broadcast, constant, declare

_I64 = ir.IntType(64)
_F32 = ir.FloatType()


@intrinsic(prefer_literal=True)
def block_tile(  # type: ignore[no-untyped-def]
    typingctx,
    w,
    w_stride,
    x,
    x_stride,
    scales,
    scales_stride,
    x_scale,
    x_sum,
    blocks,
    out,
    rows,
    tokens,
    bits,
    lanes,
    block,
    isa,
):
    """Scaled sums over all of K, float32 ``out[tokens, rows]``; ``block >= lanes``.

    ``scales`` is the address of the first row's first scale, rows ``scales_stride`` bytes apart;
    ``x_scale`` (float32) and ``x_sum`` (int32, sums of the codes) belong to the first token,
    rows ``blocks`` elements apart.
    """
    values = literals(rows, tokens, bits, lanes, block, isa)
    if values is None:
        return None
    shape, size = Shape(*values[:4]), values[4]

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        tile = TileBuilder(builder, shape, values[5], args[:4])
        sums = _BlockSums(tile, size, _Factors(tile, args[4:9]))
        at_once = ir.Constant(_I64, sums.factors.blocks_at_once)
        with cgutils.for_range(builder, builder.udiv(args[8], at_once), intp=_I64):
            sums.factors.load_many()
            count = sums.factors.blocks_at_once // sums.blocks_a_unit
            with cgutils.for_range(builder, ir.Constant(_I64, count), intp=_I64) as loop:
                first = builder.mul(loop.index, ir.Constant(_I64, sums.blocks_a_unit))
                sums.add_unit(lambda block: sums.factors.loaded(first, block))
        rest = builder.udiv(builder.urem(args[8], at_once), ir.Constant(_I64, sums.blocks_a_unit))
        with cgutils.for_range(builder, rest, intp=_I64):
            sums.add_unit(lambda block: sums.factors.load_one())
        sums.factors.subtract_zero_points(sums.sums)
        tile.finish(sums.sums, args[9], _F32, lambda value: _reduce_float(builder, value))
        return context.get_dummy_value()

    addresses = [types.intp] * 10
    return types.void(*addresses, rows, tokens, bits, lanes, block, isa), codegen


class _Factors:
    """Scales of a block: weight scale times activation scale, for every cell of a tile.

    They are computed for as many blocks at once as a vector has float32, and kept on the stack,
    from where a broadcast costs nothing but a load. What is left over goes one by one.
    """

    def __init__(self, tile: TileBuilder, addresses: list[Any]) -> None:
        self.tile, self.blocks_at_once = tile, tile.shape.lanes // 4
        scales, self.scales_stride, x_scale, x_sum, blocks = addresses
        self.row_bytes = tile.builder.shl(blocks, ir.Constant(_I64, 2))
        self.places = [tile.variable(_I64, place) for place in (scales, x_scale, x_sum)]
        self.vec = Vec("f32", self.blocks_at_once)
        self.zeros = tile.zeros(self.vec, len(tile.shape.cells) * (tile.shape.bits != 8))
        self.kept = tile.zeros(self.vec, len(tile.shape.cells))

    def load_many(self) -> None:
        """Computes the factors of the next blocks and what their zero points amount to."""
        self._load(self.vec.llvm, Vec("i32", self.blocks_at_once).llvm, lambda factor: factor)
        self._advance(self.blocks_at_once)

    def loaded(self, first: Any, block: int) -> list[Any]:
        """Factors of one of the blocks that ``load_many`` saw, by cell."""
        builder = self.tile.builder
        offset = builder.shl(builder.add(first, ir.Constant(_I64, block)), ir.Constant(_I64, 2))
        starts = [builder.ptrtoint(place, _I64) for place in self.kept]
        return [
            broadcast(builder, self.tile.vector(builder.add(start, offset), _F32), self.vec)
            for start in starts
        ]

    def load_one(self) -> list[Any]:
        """Factors of the next block, by cell."""
        zero, builder = constant(self.vec, 0), self.tile.builder
        lane = ir.Constant(ELEMENTS["i32"], 0)
        factors = self._load(
            _F32, ELEMENTS["i32"], lambda value: builder.insert_element(zero, value, lane)
        )
        self._advance(1)
        return [broadcast(builder, factor, self.vec) for factor in factors]

    def subtract_zero_points(self, sums: list[Any]) -> None:
        """Corrects the sums for codes that are not centred."""
        builder = self.tile.builder
        middle = constant(self.vec, -(1 << (self.tile.shape.bits - 1)))
        for total, zero in zip(sums, self.zeros, strict=False):
            _accumulate(builder, total, builder.load(zero), middle, self.vec)

    def _load(self, floats: Any, integers: Any, widen: Callable[[Any], Any]) -> list[Any]:
        tile, builder = self.tile, self.tile.builder
        rows = [self._at(0, r, self.scales_stride, floats) for r in range(tile.shape.rows)]
        scales = [self._at(1, t, self.row_bytes, floats) for t in range(tile.shape.tokens)]
        factors = [builder.fmul(rows[r], scales[t]) for t, r in tile.shape.cells]
        for place, factor in zip(self.kept, factors, strict=True):
            builder.store(widen(factor), place)
        if self.zeros:
            whole = [self._at(2, t, self.row_bytes, integers) for t in range(tile.shape.tokens)]
            totals = [widen(builder.sitofp(value, floats)) for value in whole]
            for (t, _), zero, place in zip(tile.shape.cells, self.zeros, self.kept, strict=True):
                _accumulate(builder, zero, builder.load(place), totals[t], self.vec)
        return factors

    def _at(self, place: int, index: int, stride: Any, kind: Any) -> Any:
        builder = self.tile.builder
        offset = builder.mul(stride, ir.Constant(_I64, index))
        return self.tile.vector(builder.add(builder.load(self.places[place]), offset), kind)

    def _advance(self, blocks: int) -> None:
        for place in self.places:
            self.tile.advance(place, 4 * blocks)


class _BlockSums:
    """Integer sums of a block and float32 sums over blocks."""

    def __init__(self, tile: TileBuilder, block: int, factors: _Factors) -> None:
        self.tile, self.factors = tile, factors
        lanes, cells = tile.shape.lanes, len(tile.shape.cells)
        self.planes_a_block = block // lanes
        self.tiles_a_unit = max(1, self.planes_a_block // tile.shape.planes)
        self.blocks_a_unit = max(1, tile.shape.planes // self.planes_a_block)
        self.sums = tile.zeros(factors.vec, cells)
        self.totals = tile.zeros(total_type(lanes), cells)
        self.partials = tile.zeros(tile.dots.partial(lanes), cells)
        self.offsets = Offsets(tile)

    def add_unit(self, factors_of: Callable[[int], list[Any]]) -> None:
        """Adds a whole number of tiles that is also a whole number of blocks."""
        done = waiting = 0
        depth = self.tile.dots.depth(self.tile.shape.bits)
        for _tile in range(self.tiles_a_unit):
            vectors = self.tile.weights()
            for plane in range(self.tile.shape.planes):
                self.offsets.add(self.tile.multiply(self.partials, vectors, plane))
                done, waiting = done + 1, waiting + 1
                ended = done % self.planes_a_block == 0
                if ended or waiting == depth:
                    self.tile.fold(self.totals, self.partials)
                    waiting = 0
                if ended:
                    self._scale(factors_of(done // self.planes_a_block - 1))

    def _scale(self, factors: list[Any]) -> None:
        builder, vec = self.tile.builder, self.factors.vec
        self.offsets.subtract(self.totals)
        for total, place, factor in zip(self.totals, self.sums, factors, strict=True):
            value = builder.sitofp(builder.load(total), vec.llvm)
            _accumulate(builder, place, value, factor, vec)
        self.tile.clear(self.totals, total_type(self.tile.shape.lanes))


def _accumulate(builder: Any, place: Any, a: Any, b: Any, vec: Vec) -> None:
    """``place += a * b``."""
    name = f"llvm.fmuladd.v{vec.lanes}f32"
    function = declare(builder, name, vec.llvm, vec.llvm, vec.llvm, vec.llvm)
    builder.store(builder.call(function, [a, b, builder.load(place)]), place)


def _reduce_float(builder: Any, vector: Any) -> Any:
    name = f"llvm.vector.reduce.fadd.v{vector.type.count}f32"
    start = ir.Constant(_F32, -0.0)
    call = builder.call(declare(builder, name, _F32, _F32, vector.type), [start, vector])
    call.fastmath.add("reassoc")
    return call
