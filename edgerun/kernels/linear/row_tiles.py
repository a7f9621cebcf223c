"""Inner loop of the linear kernels with one scale a row: exact sums over K."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.lang.dot import total_type
from edgerun.kernels.lang.ir import I64, integer, literals, store_to
from edgerun.kernels.linear.tiles import Tile, TileShape


@intrinsic(prefer_literal=True)
def row_tile(  # type: ignore[no-untyped-def]
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
    count,
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
):
    """Sums of code times activation over ``count`` vectors of K: int32 ``sums[tokens, rows]``.

    ``w`` is the address of the first vector of weight rows; others are ``apart * panel_bytes``
    further each, those beyond number ``last`` are read as that one, and those of the next of
    ``matrices`` are ``between`` bytes from the first's. Along K vectors are ``w_step`` apart. ``x``
    is the address of the first token's codes, ``x_stride`` apart; those beyond ``last_token`` are
    read as it. Sums are added to those there are, unless ``fresh``. Packed codes are asked for
    ``ahead`` bytes before their use, and ``pace`` bytes a vector.
    """
    literal = (fresh, vectors, tokens, bits, form, lanes, isa, matrices)
    values = literals(*literal)
    if values is None:
        return None
    shape = TileShape(*values[1:])

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        tile = Tile(builder, shape, args[:6], args[6:9], args[11:13])
        totals = tile.variables(tile.places(args[10]), total_type(shape.lanes), fresh=values[0])

        def fold(part: int, factor: int) -> None:
            for cell, total in enumerate(totals):
                builder.store(tile.fold(builder.load(total), cell, part, factor), total)

        bodies = builder.udiv(args[9], integer(shape.at_once))
        if not tile.depth:
            tile.start([builder.load(total) for total in totals])
            tile.bodies(bodies, [0])
            results = tile.totals()
        else:
            _in_units(tile, bodies, fold)
            results = [builder.load(total) for total in totals]
        for place, value in zip(tile.places(args[10]), results, strict=True):
            store_to(builder, value, place)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 13, *literal), codegen


def _in_units(tile: Tile, bodies: Any, fold: Callable[[int, int], None]) -> None:
    """All of K, in units that a narrow partial sum can take."""
    builder = tile.builder
    longest = 1 if tile.shape.parts > 1 else tile.depth // tile.shape.steps
    if longest == 1:
        with cgutils.for_range(builder, bodies, intp=I64):
            tile.unit(1, fold)
        return
    size = integer(longest)
    with cgutils.for_range(builder, builder.udiv(bodies, size), intp=I64):
        tile.unit(size, fold)
    rest = builder.urem(bodies, size)
    with builder.if_then(builder.icmp_unsigned("!=", rest, integer(0))):
        tile.unit(rest, fold)
