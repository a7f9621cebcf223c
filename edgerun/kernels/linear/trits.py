"""Ternary weights of 1.6 bits, five to a byte (``formats/trits.py``), made of codes and back.

Many batch rows are done by the kernels for codes of two bits, which read a matrix that
``trit_codes`` or ``trit_entries`` expands first; ``trit_pack`` makes trits of codes. Vectors of
codes (``layouts/stream.py``) and of digits are runs of four consecutive weights of each row
alike, four or five to a byte, so that four vectors of trits become five of codes.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from edgerun.formats.trits import DIGITS
from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import (
    cast,
    load,
    mask_bits,
    shift_by,
    shift_left,
    shift_right,
    splat,
    store,
)
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.word import word
from edgerun.kernels.linear.lookup_tiles import BYTES, PAIR, store_pair
from edgerun.kernels.linear.trit_tiles import trit_planes
from edgerun.kernels.linear.turns import rows_in_blocks

PLANES = 4  # of two-bit codes in a byte


@kernel(
    "trit_pack",
    "codes:u8[panels, code_tiles, lanes] trits:u8[panels, tiles, lanes] panels code_tiles tiles"
    " step",
)
def trit_pack(lanes: int) -> Body:
    """Codes ``[panels, code_tiles, lanes]`` to trits ``[panels, tiles, lanes]``.

    Codes 1, 2, 3 become digits 0, 1, 2; padding, code 0, becomes digit 0. A chunk is ``step``
    panels.
    """

    def body(a: Arguments, chunk: int) -> None:
        code_tiles, tiles, step = a.code_tiles, a.tiles, a.step
        for panel in range(chunk * step, min(a.panels, (chunk + 1) * step)):
            source = a.codes + panel * code_tiles * lanes
            target = a.trits + panel * tiles * lanes
            for tile in range(tiles):
                value = splat(0, "u8", lanes)
                for plane in range(tile * DIGITS, (tile + 1) * DIGITS):
                    value = value + shift_left(value, 1)
                    if plane < code_tiles * PLANES:
                        codes = load(source + plane // PLANES * lanes, "u8", lanes)
                        code = mask_bits(shift_by(codes, plane % PLANES * 2), 3)
                        value = value + code - mask_bits(code | shift_right(code, 1), 1)
                # ceil(value * 256 / 243) is value + ceil(13 * value / 243).
                wide = cast(value, "i32")
                above = wide * splat(13, "i32", lanes) + splat(242, "i32", lanes)
                wide = wide + shift_right(above * splat(270, "i32", lanes), 16)
                store(target + tile * lanes, cast(wide, "u8"))

    return body


def _unpacking(lanes: int, isa: str, at_once: int) -> Any:
    """The function that unpacks up to ``at_once`` vectors of trits into planes at ``digits``."""

    @njit(inline="always")  # else Numba compiles it for this machine, whatever the kernel is for
    def unpack(source, tiles, digits):  # type: ignore[no-untyped-def]
        for tile in range(tiles):
            vector = load(source + tile * lanes, "u8", lanes)
            trit_planes(vector, digits + tile * DIGITS * lanes, isa)
        for place in range(max(0, tiles) * DIGITS * lanes, at_once * DIGITS * lanes, lanes):
            store(digits + place, splat(0, "u8", lanes))

    return unpack


@kernel(
    "trit_codes",
    "trits:u8[panels, tiles, lanes] codes:u8[panels, code_tiles, lanes] panels code_tiles tiles"
    " step rows:i64[1] least",
)
def trit_codes(lanes: int, tokens: int, isa: str) -> Body:
    """The inverse of ``trit_pack``; padding may get any code.

    Nothing is done for a batch that is too small for a block of ``tokens``.
    """
    unpack = _unpacking(lanes, isa, PLANES)

    def body(a: Arguments, chunk: int) -> None:
        if rows_in_blocks(word(a.rows, 0), tokens, a.least) == 0:
            return
        code_tiles, tiles, step = a.code_tiles, a.tiles, a.step
        digits = scratch(1280)
        for panel in range(chunk * step, min(a.panels, (chunk + 1) * step)):
            for first in range(0, code_tiles, DIGITS):
                tile = first // DIGITS * PLANES
                source = a.trits + (panel * tiles + tile) * lanes
                target = a.codes + (panel * code_tiles + first) * lanes
                unpack(source, min(PLANES, tiles - tile), digits)
                for index in range(min(DIGITS, code_tiles - first)):
                    place = digits + index * PLANES * lanes
                    codes = splat(0x55, "u8", lanes) + load(place, "u8", lanes)
                    codes = codes + shift_left(load(place + lanes, "u8", lanes), 2)
                    codes = codes + shift_left(load(place + 2 * lanes, "u8", lanes), 4)
                    codes = codes + shift_left(load(place + 3 * lanes, "u8", lanes), 6)
                    store(target + index * lanes, codes)

    return body


@njit(inline="always")
def _entry(place, lanes):  # type: ignore[no-untyped-def]
    """Base-3 numbers of the digits in four planes."""
    low = load(place + lanes, "u8", lanes)
    low = low + shift_left(low, 1) + load(place, "u8", lanes)
    high = load(place + 3 * lanes, "u8", lanes)
    high = high + shift_left(high, 1) + load(place + 2 * lanes, "u8", lanes)
    return low + high + shift_left(high, 3)


@kernel(
    "trit_entries",
    "trits:u8[panels, tiles, lanes] entries:u8[panels, code_tiles, lanes] panels code_tiles tiles"
    " step rows:i64[1] least",
)
def trit_entries(lanes: int, tokens: int, isa: str) -> Body:
    """What ``lookup_entries`` makes of the same weights: ``[passes, rows, 8]``."""
    at_once, code_planes = PAIR * PLANES, PAIR * PLANES * lanes
    unpack = _unpacking(lanes, isa, at_once)

    def body(a: Arguments, chunk: int) -> None:
        if rows_in_blocks(word(a.rows, 0), tokens, a.least) == 0:
            return
        panels, code_tiles, tiles, step = a.panels, a.code_tiles, a.tiles, a.step
        panel_bytes = lanes // 4 * BYTES
        digits = scratch(2560)
        for first in range(0, code_tiles, PAIR * DIGITS):
            tile = first // DIGITS * PLANES
            for panel in range(chunk * step, min(panels, (chunk + 1) * step)):
                source = a.trits + (panel * tiles + tile) * lanes
                unpack(source, min(at_once, tiles - tile), digits)
                for pair in range(min(DIGITS, (code_tiles - first) // PAIR)):
                    place = digits + pair * code_planes
                    target = (first // PAIR + pair) * panels + panel
                    store_pair(
                        _entry(place, lanes),
                        _entry(place + PLANES * lanes, lanes),
                        a.entries + target * panel_bytes,
                    )

    return body
