"""Products of AMX: 32 batch rows times 32 weight rows, operands in tile order.

The order is that of ``layouts/tile_order.py``. Registers 0 to 3 are sums of 2 x 16 batch rows and
2 x 16 weight rows, 4 and 5 activations, 6 and 7 codes: four products for four loads. Sums come
as ``[batch rows, 32]``. With a scale for each block of K, the sums of 16 x 16 outputs fill half of
the vector registers, where the products of every block are scaled and added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.lang.ir import (
    F32,
    I8,
    I32,
    I64,
    fused,
    integer,
    literals,
    load_from,
    offset,
    store_to,
    variable,
)
from edgerun.kernels.lang.simd import Vec, broadcast, constant
from edgerun.kernels.lang.tile_registers import (
    CODES,
    LINE,
    SIDE,
    SUMS,
    TILE_BYTES,
    TILES,
    TileRegisters,
    X,
)
from edgerun.kernels.layouts.scale_vectors import ScalePlaces, halves_of
from edgerun.kernels.layouts.tile_order import MOST_DEPTH, TOKENS
from edgerun.kernels.layouts.zero_kinds import OFFSETS, has_own_vectors

WIDTH = 2 * SIDE  # weight rows that are multiplied together
STEP_BYTES = WIDTH * 4  # codes of four of K, and a row of sums
SUMS_BYTES = TOKENS * STEP_BYTES


@intrinsic(prefer_literal=True)
def multiply_tiles(typingctx, codes, x, steps, sums, groups, isa):  # type: ignore[no-untyped-def]
    """Int32 ``sums[16 * groups, 32]`` of unsigned codes, over ``steps`` times 64 of K.

    ``groups`` (1 or 2) is the number of groups of 16 batch rows; ``x`` has both.
    """
    values = literals(groups, isa)
    if values is None:
        return None
    cells = _cells(values[0])

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        tiles = TILES[values[1]](builder, MOST_DEPTH)
        for _, _, cell in cells:
            tiles.zero(cell)
        with cgutils.for_range(builder, args[2], intp=I64) as loop:
            place = builder.mul(loop.index, integer(2 * TILE_BYTES))
            _load_pair(tiles, CODES, builder.add(args[0], place), 2)
            _load_pair(tiles, X, builder.add(args[1], place), values[0])
            for t, v, cell in cells:
                tiles.multiply(cell, X[t], CODES[v], signed=False)
        _store_cells(tiles, cells, args[3])
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4, groups, isa), codegen


@intrinsic(prefer_literal=True)
def spin_tiles(typingctx, codes, x, repeats, sums, isa):  # type: ignore[no-untyped-def]
    """``sums[32, 32] = repeats * x[32, 64] * codes[64, 32]``, without a load in between.

    For timing. Operands are two tiles each.
    """
    values = literals(isa)
    if values is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        tiles, cells = TILES[values[0]](builder, MOST_DEPTH), _cells(2)
        _load_pair(tiles, CODES, args[0], 2)
        _load_pair(tiles, X, args[1], 2)
        for _, _, cell in cells:
            tiles.zero(cell)
        with cgutils.for_range(builder, args[2], intp=I64):
            for t, v, cell in cells:
                tiles.multiply(cell, X[t], CODES[v], signed=False)
        _store_cells(tiles, cells, args[3])
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4, isa), codegen


def _cells(groups: int) -> list[tuple[int, int, int]]:
    """Groups of batch rows, halves of the weight rows, and the register of their sums."""
    return [(t, v, SUMS[2 * t + v]) for t in range(groups) for v in range(2)]


def _load_pair(tiles: TileRegisters, registers: range, address: Any, count: int) -> None:
    for index in range(count):
        place = offset(tiles.builder, address, index * TILE_BYTES)
        tiles.load(registers[index], place, LINE)


def _store_cells(tiles: TileRegisters, cells: list[tuple[int, int, int]], address: Any) -> None:
    for t, v, cell in cells:
        place = offset(tiles.builder, address, t * SIDE * STEP_BYTES + v * LINE)
        tiles.store(cell, place, STEP_BYTES)


@intrinsic(prefer_literal=True)
def scale_tiles(  # type: ignore[no-untyped-def]
    typingctx,
    codes,
    x,
    scales,
    x_scale,
    x_sum,
    blocks,
    sums,
    block,
    bits,
    zeros,
    halves,
    isa,
):
    """Float32 sums of scaled blocks, 16 batch rows times 16 weight rows, of signed codes.

    ``codes`` and ``x`` are the address of the first tile of each; ``scales`` those of the panel;
    ``x_scale`` and ``x_sum`` turned, those of the first row; ``sums`` has rows of 32. With
    ``zeros`` there are vectors of zero points among the scales; those of 8 bits are less by
    their middle than the bundle's, as codes are, and are subtracted here.
    """
    values = literals(block, bits, zeros, halves, isa)
    if values is None:
        return None
    size, width, name = values[0], values[1], values[4]
    places = ScalePlaces(width, has_own_vectors(values[2]), bool(values[3]))
    has_offsets = values[2] == OFFSETS

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        scaling = _Scaling(builder, places, has_offsets, *args[2:5])
        cell = _Cell(builder, TILES[name](builder, min(size, MOST_DEPTH)), size)
        zero = constant(Vec("f32", SIDE), 0)
        totals = [variable(builder, zero) for _ in range(SIDE)]
        with cgutils.for_range(builder, args[5], intp=I64) as loop:
            products = cell.multiply(args[0], args[1], loop.index)
            scaling.add(products, loop.index, totals)
        for t, total in enumerate(totals):
            store_to(builder, builder.load(total), offset(builder, args[6], t * STEP_BYTES))
        return context.get_dummy_value()

    return types.void(*[types.intp] * 7, block, bits, zeros, halves, isa), codegen


class _Cell:
    """Products of a block, which go through memory from a tile register to vectors."""

    def __init__(self, builder: Any, tiles: TileRegisters, block: int) -> None:
        self.builder, self.tiles, self.count = builder, tiles, block // tiles.depth
        with builder.goto_entry_block():
            area = builder.alloca(ir.ArrayType(I8, 2 * TILE_BYTES))
            area.align = LINE
            self.areas = builder.ptrtoint(area, I64)

    def multiply(self, codes: Any, x: Any, block: Any) -> Any:
        """The address of the products; blocks take turns with two of them."""
        builder, tiles = self.builder, self.tiles
        tile_bytes = SIDE * tiles.depth
        place = builder.mul(block, integer(2 * self.count * tile_bytes))
        tiles.zero(SUMS[0])
        for index in range(self.count):
            at = offset(builder, place, 2 * index * tile_bytes)
            tiles.load(X[0], builder.add(x, at), tiles.depth)
            tiles.load(CODES[0], builder.add(codes, at), LINE)
            tiles.multiply(SUMS[0], X[0], CODES[0], signed=True)
        turn = builder.mul(builder.and_(block, integer(1)), integer(TILE_BYTES))
        area = builder.add(self.areas, turn)
        tiles.store(SUMS[0], area, LINE)
        return area


@dataclass(frozen=True)
class _Scaling:
    """Scales of blocks.

    Attributes:
        builder: emits.
        places: where scales and zero points are among the vectors of a panel.
        has_offsets: whether blocks have them beside their scales.
        scales: address of those.
        x_scale: address of the scales of activations, turned.
        x_sum: address of their sums, turned.
    """

    builder: Any
    places: ScalePlaces
    has_offsets: bool
    scales: Any
    x_scale: Any
    x_sum: Any

    def add(self, products: Any, block: Any, totals: list[Any]) -> None:
        """Adds the scaled products of a block, as ``block_tile`` does."""
        builder, floats, ints = self.builder, Vec("f32", SIDE), Vec("i32", SIDE)
        place = self.places.scales(builder, block, LINE)
        scale, offsets = self._row(builder.add(self.scales, place))
        turned = builder.mul(block, integer(TOKENS * 4))
        points = self._zero_points(block) if self.places.zeros and self.places.bits == 8 else None
        for t, total in enumerate(totals):
            line = load_from(builder, offset(builder, products, t * LINE), ints.llvm)
            at = offset(builder, turned, t * 4)
            if points is not None or offsets is not None:
                count = load_from(builder, builder.add(self.x_sum, at), I32)
            if points is not None:
                line = builder.sub(line, builder.mul(points, broadcast(builder, count, ints)))
            row_scale = load_from(builder, builder.add(self.x_scale, at), F32)
            x_scale = broadcast(builder, row_scale, floats)
            value, factor = builder.sitofp(line, floats.llvm), builder.fmul(scale, x_scale)
            scaled = fused(builder, value, factor, builder.load(total))
            if offsets is not None:
                x_total = broadcast(builder, builder.sitofp(count, F32), floats)
                scaled = fused(builder, offsets, builder.fmul(x_total, x_scale), scaled)
            builder.store(scaled, total)

    def _row(self, place: Any) -> tuple[Any, Any]:
        """Scales of a block, and its offsets, if there are any."""
        if not self.has_offsets:
            return self.places.load_scales(self.builder, place, LINE), None
        return halves_of(self.builder, load_from(self.builder, place, Vec("i32", SIDE).llvm))

    def _zero_points(self, block: Any) -> Any:
        builder, kind = self.builder, Vec("i32", SIDE)
        vector, bit = self.places.zero_points(builder, block)
        place = builder.add(self.scales, builder.mul(vector, integer(LINE)))
        words = load_from(builder, place, kind.llvm)
        points = builder.lshr(words, broadcast(builder, builder.trunc(bit, I32), kind))
        low, middle = (1 << self.places.bits) - 1, 1 << (self.places.bits - 1)
        return builder.sub(builder.and_(points, constant(kind, low)), constant(kind, middle))
