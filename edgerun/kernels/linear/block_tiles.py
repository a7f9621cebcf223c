"""Inner loop of the linear kernels with block scales: each block is scaled to float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.lang.dot import negated, products, raising, total_type
from edgerun.kernels.lang.ir import (
    F32,
    I32,
    I64,
    fused,
    integer,
    literals,
    load_from,
    offset,
    prefetch_line,
    store_to,
    variable,
)
from edgerun.kernels.lang.isa import isa_of
from edgerun.kernels.lang.simd import Vec, broadcast, constant
from edgerun.kernels.layouts.panels import numbers_of, places_of
from edgerun.kernels.layouts.scale_vectors import ScalePlaces, halves_of
from edgerun.kernels.layouts.starts import AS_THEY_ARE, BIAS, starts_of
from edgerun.kernels.layouts.tile_order import K_STEP
from edgerun.kernels.layouts.zero_kinds import OFFSETS, OWN, RAISED, has_own_vectors
from edgerun.kernels.linear.tiles import (
    ORDERED,
    PACKED,
    SCALES_AHEAD_BYTES,
    Tile,
    TileShape,
    zero_point,
)


@intrinsic(prefer_literal=True)
def block_tile(  # type: ignore[no-untyped-def]
    typingctx,
    w,
    panel_bytes,
    apart,
    last,
    between,
    w_step,
    x,
    x_stride,
    last_token,
    scales,
    scales_last,
    scales_between,
    x_scale,
    x_sum,
    x_blocks,
    first,
    blocks,
    sums,
    ahead,
    pace,
    fresh,
    vectors,
    tokens,
    bits,
    form,
    lanes,
    isa,
    matrices,
    block,
    zeros,
    halves,
):
    """Scaled sums over ``blocks`` blocks of K: float32 ``sums[tokens, rows]``, as ``row_tile``.

    ``scales`` is float32 ``[vectors, x_blocks, lanes / 4]``, of whose vectors ``apart``,
    ``scales_last`` and ``scales_between`` choose, and of whose blocks those from ``first`` on.
    What ``zeros`` and ``halves`` change of them says ``layouts/scale_vectors.py``. ``x_scale``
    (float32) and ``x_sum`` (int32, sums of the codes) belong to the first token and block
    ``first``, tokens ``x_blocks`` elements apart; in tile order they lie in it, too, and sums are
    as ``order_block`` leaves them.
    """
    literal = (fresh, vectors, tokens, bits, form, lanes, isa, matrices, block, zeros, halves)
    values = literals(*literal)
    if values is None:
        return None
    shape, steps = TileShape(*values[1:8]), values[8] // K_STEP

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        tile = Tile(builder, shape, args[:6], args[6:9], args[18:20])
        sums = _Sums(tile, args[17], fresh=values[0])
        scaling = _Scaling(tile, values[9:11], args[2], args[10:12], [args[9], *args[12:16]])
        with cgutils.for_range(builder, args[16], intp=I64) as loop:
            totals = _totals(tile, partial(scaling.offsets, loop.index), steps)
            scaling.add(loop.index, totals, sums)
        sums.finish()
        return context.get_dummy_value()

    return types.void(*[types.intp] * 20, *literal), codegen


class _Sums:
    """float32 sums of the cells of a tile.

    They wait in memory for the next block where registers do not hold them beside the block's own
    sums, and additions take them from there: a store for each is less than what a compiler moves
    out of their way instead.
    """

    def __init__(self, tile: Tile, address: Any, *, fresh: bool) -> None:
        self.builder, self.kind = tile.builder, Vec("f32", tile.shape.lanes // 4)
        self.places, self.variables = tile.places(address), []
        isa = isa_of(tile.shape.isa)
        if tile.shape.cells <= isa.registers // 4 or not isa.fuses_loads:
            self.variables = tile.variables(self.places, self.kind, fresh=fresh)
        elif fresh:
            for place in self.places:
                store_to(self.builder, constant(self.kind, 0), place)

    def get(self, cell: int) -> Any:
        """The sum of a cell."""
        if self.variables:
            return self.builder.load(self.variables[cell])
        return load_from(self.builder, self.places[cell], self.kind.llvm)

    def put(self, cell: int, value: Any) -> None:
        """Replaces the sum of a cell."""
        if self.variables:
            self.builder.store(value, self.variables[cell])
        else:
            store_to(self.builder, value, self.places[cell])

    def finish(self) -> None:
        """Leaves all sums in memory; those that have no variables are there."""
        for each, place in zip(self.variables, self.places, strict=False):
            store_to(self.builder, self.builder.load(each), place)


def _totals(tile: Tile, offsets: Callable[[], list[Any]], steps: int) -> list[Any]:
    """Totals of a block, which begin with ``offsets``; narrow partial sums are added to them."""
    shape = tile.shape
    if not tile.depth:
        tile.start(offsets())
        tile.bodies(max(1, steps // shape.steps), [0], min(steps, shape.steps))
        return tile.totals()
    totals: list[Any] = []

    def fold(part: int, factor: int) -> None:
        if not totals:  # not before: they would take registers from products
            totals.extend(offsets())
        totals[:] = [tile.fold(total, cell, part, factor) for cell, total in enumerate(totals)]

    bodies = max(1, steps // shape.steps)
    longest = 1 if shape.parts > 1 else tile.depth // shape.steps
    while bodies:
        tile.unit(min(bodies, longest), fold, min(steps, shape.steps))
        bodies -= min(bodies, longest)
    return totals


def _raises(shape: TileShape) -> bool:
    """Whether zero points that blocks have of their own become one, by raising codes."""
    least, has_room = isa_of(shape.isa).raises, 1 << shape.bits <= shape.lanes // 4
    return shape.form == PACKED and 0 < least <= shape.tokens and has_room


class _Scaling:
    """Zero points and scales of the blocks of a tile."""

    def __init__(
        self,
        tile: Tile,
        kinds: list[int],
        apart: Any,
        reach: list[Any],
        addresses: list[Any],
    ) -> None:
        zeros, halves = kinds
        vectors = ScalePlaces(tile.shape.bits, has_own_vectors(zeros), bool(halves))
        self.tile, self.vectors = tile, vectors
        (last, between), (scales, x_scale, x_sum, x_blocks, self.first) = reach, addresses
        builder, shape = tile.builder, tile.shape
        panel_bytes = builder.mul(vectors.count(builder, x_blocks), integer(shape.lanes))
        numbers = numbers_of(builder, shape, apart, last)
        self.scales = places_of(builder, shape, scales, numbers, panel_bytes, between)
        row_bytes = builder.shl(x_blocks, integer(2))
        self.x_scales, self.x_sums = tile.rows(x_scale, row_bytes), tile.rows(x_sum, row_bytes)
        self.raises = zeros == OWN and _raises(shape)
        self.middle = zero_point(shape.bits, shape.isa)
        if zeros == RAISED:
            self.middle = (1 << shape.bits) - 1
        if self.raises:  # a power of two, so that no product is needed
            self.middle = 1 << shape.bits
        self.has_offsets = zeros == OFFSETS
        starts = starts_of(shape.bits, shape.isa, zeros)
        self.has_starts = shape.form == ORDERED and starts != AS_THEY_ARE
        self.points = _Points(tile, vectors, self.scales, self.first) if zeros == OWN else None
        self.floats = Vec("f32", shape.lanes // 4)

    def offsets(self, block: Any) -> list[Any]:
        """What the sums of a block start from, by cell: the zero point's part, negated."""
        builder, shape = self.tile.builder, self.tile.shape
        kind, factors = total_type(shape.lanes), []
        if self.has_starts:
            starts = [load_from(builder, self._at(start, block), I32) for start in self.x_sums]
            return [broadcast(builder, s, kind) for s in starts for _ in range(shape.vectors)]
        if self.points:
            numbers = self.points.numbers(block)
            if self.raises:
                self.tile.raising = [raising(builder, each, shape.bits) for each in numbers]
            else:
                factors = [self._negated(each) for each in numbers]
        values = []
        for start in self.x_sums:
            count = broadcast(builder, load_from(builder, self._at(start, block), I32), kind)
            if self.tile.depth:  # a vector from the start: else each dword is shifted, then moved
                count = self.tile.hidden(count)
            if factors:
                values += [products(builder, self.tile.dots, each, count) for each in factors]
            else:
                values += [builder.mul(count, constant(kind, -self.middle))] * shape.vectors
        return values

    def _negated(self, numbers: Any) -> Any:
        """Zero points, negated, as ``products`` takes them."""
        bits, isa = self.tile.shape.bits, self.tile.shape.isa
        raised = (1 << (bits - 1)) - zero_point(bits, isa)
        return negated(self.tile.builder, self.tile.dots, numbers, bits, raised)

    def add(self, block: Any, totals: list[Any], sums: _Sums) -> None:
        """Scales the integer sums of a block and adds them up."""
        builder, shape = self.tile.builder, self.tile.shape
        places = self._scale_places(block)
        if not shape.is_unpacked:
            for at in places:
                prefetch_line(builder, offset(builder, at, SCALES_AHEAD_BYTES))
        rows, offsets = self._rows(places)
        for t, start in enumerate(self.x_scales):
            scale = broadcast(builder, load_from(builder, self._at(start, block), F32), self.floats)
            x_total = self._x_total(t, block, scale) if offsets else None
            for v in range(shape.vectors):
                cell = t * shape.vectors + v
                factor = builder.fmul(rows[v], scale)
                value = self._float(totals[cell])
                total = fused(builder, value, factor, sums.get(cell))
                if offsets:
                    total = fused(builder, offsets[v], x_total, total)
                sums.put(cell, total)

    def _float(self, total: Any) -> Any:
        """An exact total as float32."""
        builder, kind = self.tile.builder, self.floats.llvm
        if not (self.has_starts and isa_of(self.tile.shape.isa).subtracts_to_convert):
            return builder.sitofp(total, kind)
        bias = constant(self.floats, BIAS)
        return builder.fsub(builder.bitcast(total, kind), bias)

    def _scale_places(self, block: Any) -> list[Any]:
        """Addresses of the scales of a block, by vector."""
        builder, lanes = self.tile.builder, self.tile.shape.lanes
        if self.points:
            place = self.points.next_scales()
        else:
            place = self.vectors.scales(builder, builder.add(block, self.first), lanes)
        return [builder.add(base, place) for base in self.scales]

    def _rows(self, places: list[Any]) -> tuple[list[Any], list[Any]]:
        """Scales of the rows of each vector, and their offsets, if blocks have any."""
        builder, lanes = self.tile.builder, self.tile.shape.lanes
        if not self.has_offsets:
            return [self.vectors.load_scales(builder, at, lanes) for at in places], []
        kind = total_type(lanes).llvm
        pairs = [halves_of(builder, load_from(builder, at, kind)) for at in places]
        return [scales for scales, _ in pairs], [offsets for _, offsets in pairs]

    def _x_total(self, token: int, block: Any, scale: Any) -> Any:
        """The sum of a block's rounded activations."""
        builder = self.tile.builder
        count = load_from(builder, self._at(self.x_sums[token], block), I32)
        value = broadcast(builder, builder.sitofp(count, F32), self.floats)
        return builder.fmul(value, scale)

    def _at(self, start: Any, block: Any) -> Any:
        builder = self.tile.builder
        return builder.add(start, builder.mul(block, integer(self.tile.shape.row_bytes)))


class _Points:
    """Zero points of the blocks of a tile, and the places of its scales, one block after the other.

    The dwords with the zero points of some blocks are read once, stay in registers, and are shifted
    from block to block. Reading and shifting them for each took, with two bits, 90 instructions for
    a block of two panels and a row where 81 are enough, and 76 without zero points.
    """

    def __init__(self, tile: Tile, vectors: ScalePlaces, panels: list[Any], first: Any) -> None:
        self.tile, self.vectors, self.panels, self.first = tile, vectors, panels, first
        builder, lanes = tile.builder, tile.shape.lanes
        self.kind = total_type(lanes)
        self.place = variable(builder, vectors.begin(builder, first, lanes))
        # A piece of unpacked codes may begin with a block whose zero points are inside a dword.
        vector, shift = vectors.zero_points(builder, first)
        shift = broadcast(builder, builder.trunc(shift, I32), self.kind)
        dwords = self._load(builder.mul(vector, integer(lanes)))
        self.dwords = [variable(builder, builder.lshr(each, shift)) for each in dwords]

    def numbers(self, block: Any) -> list[Any]:
        """Zero points of the rows of each vector, in the low bits of lanes."""
        builder, bits = self.tile.builder, self.tile.shape.bits
        index = builder.urem(builder.add(block, self.first), integer(self.vectors.group))
        with builder.if_then(builder.icmp_unsigned("==", index, integer(0))):
            words = self._load(self._next(self.tile.shape.lanes))
            for dwords, each in zip(self.dwords, words, strict=True):
                builder.store(each, dwords)
        values = [builder.load(dwords) for dwords in self.dwords]
        for dwords, each in zip(self.dwords, values, strict=True):
            builder.store(builder.lshr(each, constant(self.kind, bits)), dwords)
        return values

    def next_scales(self) -> Any:
        """How far the scales of the next block are from a panel's first vector."""
        return self._next(self.vectors.scale_bytes(self.tile.shape.lanes))

    def _next(self, size: int) -> Any:
        """How far the next thing to be read, of so many bytes, is from a panel's first vector."""
        place = self.tile.builder.load(self.place)
        moved = self.tile.builder.add(place, integer(size))
        self.tile.builder.store(moved, self.place)
        return place

    def _load(self, place: Any) -> list[Any]:
        builder, kind = self.tile.builder, self.kind.llvm
        return [load_from(builder, builder.add(base, place), kind) for base in self.panels]
