"""Inner loop of the linear kernel whose activations are float32: low-bit codes become floats."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.lang.ir import (
    F32,
    I32,
    I64,
    fused,
    integer,
    literals,
    load_from,
    store_to,
    variable,
)
from edgerun.kernels.lang.simd import Vec, broadcast, constant
from edgerun.kernels.layouts.scale_vectors import ScalePlaces, halves_of
from edgerun.kernels.layouts.tile_order import K_STEP
from edgerun.kernels.layouts.zero_kinds import OFFSETS, has_own_vectors

SUMS = 8  # of a row: weight k goes to sum k % SUMS, which is how they are added up in the end


@intrinsic(prefer_literal=True)
def float_tile(typingctx, w, x, scales, blocks, out, bits, lanes, block, zeros):  # type: ignore[no-untyped-def]
    """float32 ``out[lanes / 4]``: products of a panel of weight rows with one row of activations.

    ``scales`` is float32 ``[blocks, lanes / 4]``, and what ``zeros`` says besides
    (``layouts/zero_kinds.py``). Each of ``SUMS`` sums is scaled block by block.
    """
    values = literals(bits, lanes, block, zeros)
    if values is None:
        return None
    size, width, length = values[:3]
    vectors_of_scales = ScalePlaces(size, has_own_vectors(values[3]))
    vectors = SUMS * size // 32 or 1  # that stand for whole rounds of the sums

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        tile = _FloatTile(builder, size, width, has_offsets=values[3] == OFFSETS)
        zero = constant(tile.vec, 0)
        totals = [variable(builder, zero) for _ in range(SUMS)]
        sums = [variable(builder, zero) for _ in range(SUMS)]
        block_bytes = length * width * size // 32
        with cgutils.for_range(builder, args[3], intp=I64) as loop:
            start = builder.add(args[0], builder.mul(loop.index, integer(block_bytes)))
            x_start = builder.add(args[1], builder.mul(loop.index, integer(length * 4)))
            count = length * size // 32 // vectors
            middle = tile.zero_points(vectors_of_scales, args[2], loop.index)
            with cgutils.for_range(builder, integer(count), intp=I64) as inner:
                at = builder.add(start, builder.mul(inner.index, integer(vectors * width)))
                x_at = builder.mul(inner.index, integer(vectors * 32 // size * 4))
                tile.add(sums, at, builder.add(x_start, x_at), vectors, middle)
            place = vectors_of_scales.scales(builder, loop.index, width)
            scale = tile.scales(builder.add(args[2], place), totals[0])
            for total, part in zip(totals, sums, strict=True):
                value = fused(builder, builder.load(part), scale, builder.load(total))
                builder.store(value, total)
                builder.store(zero, part)
        results = [builder.load(total) for total in totals]
        while len(results) > 1:
            half = len(results) // 2
            results = [builder.fadd(results[i], results[i + half]) for i in range(half)]
        store_to(builder, results[0], args[4])
        return context.get_dummy_value()

    return types.void(*[types.intp] * 5, bits, lanes, block, zeros), codegen


class _FloatTile:
    """Emits the products of a few vectors of codes."""

    def __init__(self, builder: Any, bits: int, lanes: int, *, has_offsets: bool) -> None:
        self.builder, self.bits, self.lanes = builder, bits, lanes
        self.vec, self.dwords = Vec("f32", lanes // 4), Vec("i32", lanes // 4)
        zero = constant(self.vec, 0)
        self.x_total = variable(builder, zero) if has_offsets else None

    def zero_points(self, places: ScalePlaces, scales: Any, block: Any) -> Any:
        """Those of the rows of a panel, as floats."""
        if not places.zeros:
            return constant(self.vec, 1 << (self.bits - 1))
        builder = self.builder
        vector, shift = places.zero_points(builder, block)
        place = builder.add(scales, builder.mul(vector, integer(self.lanes)))
        words = load_from(builder, place, self.dwords.llvm)
        shift = broadcast(builder, builder.trunc(shift, I32), self.dwords)
        mask = constant(self.dwords, (1 << self.bits) - 1)
        return builder.sitofp(builder.and_(builder.lshr(words, shift), mask), self.vec.llvm)

    def scales(self, place: Any, total: Any) -> Any:
        """Scales of a block; its offsets times the sum of its activations are added to a total."""
        builder = self.builder
        if self.x_total is None:
            return load_from(builder, place, self.vec.llvm)
        scales, offsets = halves_of(builder, load_from(builder, place, self.dwords.llvm))
        x_total = builder.load(self.x_total)
        builder.store(fused(builder, offsets, x_total, builder.load(total)), total)
        builder.store(constant(self.vec, 0), self.x_total)
        return scales

    def add(self, sums: list[Any], w: Any, x: Any, vectors: int, middle: Any) -> None:
        """Adds the products of ``vectors`` vectors from ``w`` on, of codes less ``middle``."""
        builder, k = self.builder, 0
        for index in range(vectors):
            place = builder.add(w, integer(index * self.lanes))
            packed = load_from(builder, place, self.dwords.llvm)
            for plane in range(8 // self.bits):
                for byte in range(K_STEP):
                    codes = builder.lshr(
                        packed, constant(self.dwords, 8 * byte + plane * self.bits)
                    )
                    codes = builder.and_(codes, constant(self.dwords, (1 << self.bits) - 1))
                    weights = builder.fsub(builder.sitofp(codes, self.vec.llvm), middle)
                    value = load_from(builder, builder.add(x, integer(4 * k)), F32)
                    place = sums[k % SUMS]
                    x_vector = broadcast(builder, value, self.vec)
                    total = fused(builder, weights, x_vector, builder.load(place))
                    builder.store(total, place)
                    if self.x_total is not None:
                        x_total = builder.fadd(builder.load(self.x_total), x_vector)
                        builder.store(x_total, self.x_total)
                    k += 1
