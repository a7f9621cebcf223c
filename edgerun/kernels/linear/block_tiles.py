"""Inner loops of the linear kernels with block scales: each block is scaled to float32."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.lang.cells import FOUR, NARROW, gather_lanes, merge_cells, padded, transposed
from edgerun.kernels.lang.dot import total_type
from edgerun.kernels.lang.simd import ELEMENTS, Vec, constant, declare, pointer
from edgerun.kernels.linear.row_tiles import Offsets, Shape, TileBuilder, literals

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
                sums.add_unit(builder.mul(loop.index, ir.Constant(_I64, sums.blocks_a_unit)))
        rest = builder.udiv(builder.urem(args[8], at_once), ir.Constant(_I64, sums.blocks_a_unit))
        with cgutils.for_range(builder, rest, intp=_I64):
            sums.factors.load_some(sums.blocks_a_unit)
            sums.add_unit(ir.Constant(_I64, 0))
        sums.store(args[9])
        return context.get_dummy_value()

    addresses = [types.intp] * 10
    return types.void(*addresses, rows, tokens, bits, lanes, block, isa), codegen


class _Factors:
    """What turns the integer sums of a block into floats, for every cell of a tile.

    Scales are weight scale times activation scale; offsets are what the zero points of the codes
    amount to. They are computed for as many blocks at once as a vector has float32, transposed,
    and kept on the stack, block by block. What is left over goes a few blocks at a time.
    """

    def __init__(self, tile: TileBuilder, addresses: list[Any]) -> None:
        self.tile, self.blocks_at_once = tile, tile.shape.lanes // 4
        scales, self.scales_stride, x_scale, x_sum, blocks = addresses
        self.row_bytes = tile.builder.shl(blocks, ir.Constant(_I64, 2))
        self.places = [tile.variable(_I64, place) for place in (scales, x_scale, x_sum)]
        self.cells = padded(tile.shape.cells)
        bits = tile.shape.bits
        self.middle = 0 if bits == 8 else bits - 1  # as a power of two
        self.kept_scales = self._kept(_F32)
        self.kept_offsets = self._kept(ELEMENTS["i32"]) if self.middle else None

    def load_many(self) -> None:
        """Computes what belongs to the next ``blocks_at_once`` blocks."""
        self._load(self.blocks_at_once)

    def load_some(self, count: int) -> None:
        """Computes what belongs to the next few blocks."""
        for index in range(count):
            self._load(1, index)

    def scale(self, block: Any) -> Any:
        """Scales of the cells in a block, counted from the last load: float32 ``[cells]``."""
        return self._at_block(self.kept_scales, block, _F32)

    def offset(self, block: Any) -> Any | None:
        """What to subtract from the sums of the cells likewise, int32; None for nothing."""
        if self.kept_offsets is None:
            return None
        return self._at_block(self.kept_offsets, block, ELEMENTS["i32"])

    def _load(self, count: int, block: int = 0) -> None:
        tile, builder = self.tile, self.tile.builder
        rows = [self._read(0, r, self.scales_stride, _F32, count) for r in range(tile.shape.rows)]
        scales = [self._read(1, t, self.row_bytes, _F32, count) for t in range(tile.shape.tokens)]
        self._keep(
            self.kept_scales, [builder.fmul(rows[r], scales[t]) for t, r in self.cells], block
        )
        if self.kept_offsets is not None:
            kind = ELEMENTS["i32"]
            sums = [self._read(2, t, self.row_bytes, kind, count) for t in range(tile.shape.tokens)]
            shift = constant(Vec("i32", count), self.middle)
            offsets = [builder.shl(value, shift) for value in sums]
            self._keep(self.kept_offsets, [offsets[t] for t, _ in self.cells], block)
        for place in self.places:
            tile.advance(place, 4 * count)

    def _read(self, place: int, index: int, stride: Any, kind: Any, count: int) -> Any:
        builder = self.tile.builder
        offset = builder.mul(stride, ir.Constant(_I64, index))
        address = builder.add(builder.load(self.places[place]), offset)
        return self.tile.vector(address, ir.VectorType(kind, count))

    def _keep(self, kept: Any, vectors: list[Any], block: int) -> None:
        """Stores vectors ``[blocks]``, one a cell, as vectors ``[cells]``, one a block."""
        builder = self.tile.builder
        for first in range(0, len(self.cells), FOUR):
            four = vectors[first : first + FOUR]
            for index, row in enumerate(transposed(builder, four)):
                address = self._place(kept, ir.Constant(_I64, block + index), first)
                builder.store(row, pointer(builder, address, row.type)).align = 1

    def _kept(self, kind: Any) -> Any:
        count = self.blocks_at_once * len(self.cells)
        return self.tile.variable(
            ir.VectorType(kind, count), ir.Constant(ir.VectorType(kind, count), ir.Undefined)
        )

    def _place(self, kept: Any, block: Any, cell: int) -> Any:
        builder = self.tile.builder
        start = builder.ptrtoint(kept, _I64)
        offset = builder.mul(block, ir.Constant(_I64, 4 * len(self.cells)))
        return builder.add(builder.add(start, offset), ir.Constant(_I64, 4 * cell))

    def _at_block(self, kept: Any, block: Any, kind: Any) -> Any:
        return self.tile.vector(self._place(kept, block, 0), ir.VectorType(kind, len(self.cells)))


class _BlockSums:
    """Integer sums of a block, and float32 sums over blocks: a vector with a lane for each cell.

    Every block's sum is exact, then scaled and added in the order of the blocks, as the matrix
    products do (``gemm_tiles.py``, ``amx.py``): whatever path a row takes, its bits are the same.
    """

    def __init__(self, tile: TileBuilder, block: int, factors: _Factors) -> None:
        self.tile, self.factors = tile, factors
        lanes, cells = tile.shape.lanes, len(tile.shape.cells)
        self.planes_a_block = block // lanes
        self.tiles_a_unit = max(1, self.planes_a_block // tile.shape.planes)
        self.blocks_a_unit = max(1, tile.shape.planes // self.planes_a_block)
        self.vec = Vec("f32", len(factors.cells))
        self.sums = tile.zeros(self.vec, 1)[0]
        self.totals = tile.zeros(total_type(lanes), cells)
        self.partials = tile.zeros(tile.dots.partial(lanes), cells)
        self.offsets = Offsets(tile)
        self.depth = tile.dots.depth(tile.shape.bits)

    def add_unit(self, first: Any) -> None:
        """Adds a whole number of tiles that is also a whole number of blocks.

        ``first`` is the number of the first block since factors were loaded.
        """
        builder = self.tile.builder
        done = waiting = 0
        for _tile in range(self.tiles_a_unit):
            vectors = self.tile.weights()
            for plane in range(self.tile.shape.planes):
                self.offsets.add(self.tile.multiply(self.partials, vectors, plane))
                done, waiting = done + 1, waiting + 1
                if done % self.planes_a_block == 0:
                    block = ir.Constant(_I64, done // self.planes_a_block - 1)
                    self._end_block(builder.add(first, block), waiting)
                    waiting = 0
                elif waiting == self.depth:
                    self.tile.fold(self.totals, self.partials)
                    waiting = 0

    def store(self, out: Any) -> None:
        """Stores the float32 sums of the cells."""
        builder, shape = self.tile.builder, self.tile.shape
        order = ir.Constant(
            ir.VectorType(ir.IntType(32), len(shape.cells)), list(range(len(shape.cells)))
        )
        sums = builder.load(self.sums)
        cells = builder.shuffle_vector(sums, sums, order)
        builder.store(cells, pointer(builder, out, cells.type)).align = 4

    def _end_block(self, block: Any, waiting: int) -> None:
        builder, factors = self.tile.builder, self.factors
        sums = self._block_sums(waiting)
        offset = factors.offset(block)
        if offset is not None:
            sums = builder.sub(sums, offset)
        name = f"llvm.fmuladd.v{self.vec.lanes}f32"
        kind = self.vec.llvm
        fma = declare(builder, name, kind, kind, kind, kind)
        value = builder.sitofp(sums, kind)
        total = builder.call(fma, [value, factors.scale(block), builder.load(self.sums)])
        builder.store(total, self.sums)

    def _block_sums(self, waiting: int) -> Any:
        """The integer sums of the cells in the block that ends here, int32 ``[cells]``."""
        tile, builder, lanes = self.tile, self.tile.builder, self.tile.shape.lanes
        whole = waiting == self.planes_a_block
        if whole and not self.offsets.needed and self.depth >= NARROW * waiting:
            # Narrow sums have room for those of other lanes: fewer have to be widened.
            vectors = [builder.load(partial) for partial in self.partials]
            tile.clear(self.partials, tile.dots.partial(lanes))
            zero = constant(total_type(lanes), 0)
            merged = [
                tile.dots.fold(builder, zero, value, lanes)
                for value in merge_cells(builder, padded(vectors))
            ]
            return gather_lanes(builder, merged)
        tile.fold(self.totals, self.partials)
        self.offsets.subtract(self.totals)
        vectors = [builder.load(total) for total in self.totals]
        tile.clear(self.totals, total_type(lanes))
        return gather_lanes(builder, merge_cells(builder, padded(vectors)))
