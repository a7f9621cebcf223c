"""Linear layers over ternary weights of 1.6 bits, five to a byte (``formats/trits.py``).

``linear_trits`` is ``linear_row`` for them: integer sums are exact, and the float operations are
the same in the same order, so that results are equal bit for bit. Fewer bytes cost more
instructions: that pays where memory, not the core, is the limit.

Many batch rows are done by the kernels for codes of two bits, which read a matrix that
``trit_codes`` or ``trit_entries`` expands first; ``trit_pack`` makes trits of codes. Planes of
codes (``layout.py``) and of digits are runs of ``lanes`` consecutive weights alike, four or five
to a byte, so that four bytes of trits become five of codes.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from edgerun.formats.trits import DIGITS
from edgerun.kernels.jit.registry import Body, kernel
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
from edgerun.kernels.linear.lookup_tiles import BYTES, store_planes
from edgerun.kernels.linear.rows import (
    CODES,
    COMMON,
    GROUPS,
    ROWS,
    STEP,
    TILES,
    TOKENS,
    WIDE,
    X_STRIDE,
    X,
    lookup_rows,
    store_integers,
)
from edgerun.kernels.linear.trit_tiles import trit_planes, trit_tile

LOOKUP = 15
PLANES = 4  # of two-bit codes in a byte
MIDDLE = 1  # digits are weights plus one


@kernel("linear_trits", COMMON + "x x_stride x_scale x_sum lookup")
def linear_trits(lanes: int, isa: str) -> Body:
    """One scale a weight row and one an activation row: int32 over the whole of K.

    ``codes`` is uint8 ``[4 * groups, tiles, lanes]`` of trits; ``x`` is int8 ``[rows,
    x_stride]``, zero from K on; the other fields are those of ``linear_row``.
    """
    side = 4 if lanes == WIDE else 2

    def body(a: int, chunk: int) -> None:
        tiles, stride, rows = word(a, TILES), word(a, X_STRIDE), word(word(a, ROWS), 0)
        first = chunk * word(a, STEP)
        apart = min(word(a, GROUPS), first + word(a, STEP)) - first
        far = apart * tiles * lanes
        sums = scratch(64)
        row = lookup_rows(rows, word(a, LOOKUP))
        while row < rows:
            x = word(a, X) + row * stride
            many = row + TOKENS <= rows
            for n in range(first * 4, first * 4 + apart):
                w = word(a, CODES) + n * tiles * lanes
                if many:
                    for r in range(0, 4, side):
                        start = w + r * far
                        trit_tile(start, far, x, stride, tiles, sums, side, TOKENS, lanes, isa)
                        store_integers(a, row, n + r * apart, apart, sums, TOKENS, side, MIDDLE)
                else:
                    trit_tile(w, far, x, stride, tiles, sums, 4, 1, lanes, isa)
                    store_integers(a, row, n, apart, sums, 1, 4, MIDDLE)
            row += TOKENS if many else 1

    return body


@kernel("trit_pack", "codes trits groups code_tiles tiles step")
def trit_pack(lanes: int) -> Body:
    """Codes ``[4 * groups, code_tiles, lanes]`` to trits ``[4 * groups, tiles, lanes]``.

    Codes 1, 2, 3 become digits 0, 1, 2; padding, code 0, becomes digit 0. A chunk is ``step``
    groups of four rows.
    """

    def body(a: int, chunk: int) -> None:
        code_tiles, tiles, step = word(a, 3), word(a, 4), word(a, 5)
        for row in range(chunk * step * 4, min(word(a, 2), (chunk + 1) * step) * 4):
            source = word(a, 0) + row * code_tiles * lanes
            target = word(a, 1) + row * tiles * lanes
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


def _unpacking(lanes: int, isa: str) -> Any:
    """The function that unpacks up to four vectors of trits into 20 planes at ``digits``."""

    @njit(inline="always")  # else Numba compiles it for this machine, whatever the kernel is for
    def unpack(source, some, digits):  # type: ignore[no-untyped-def]
        for tile in range(some):
            vector = load(source + tile * lanes, "u8", lanes)
            trit_planes(vector, digits + tile * DIGITS * lanes, isa)
        for place in range(some * DIGITS * lanes, PLANES * DIGITS * lanes, lanes):
            store(digits + place, splat(0, "u8", lanes))

    return unpack


@kernel("trit_codes", "trits codes groups code_tiles tiles step rows")
def trit_codes(lanes: int, tokens: int, isa: str) -> Body:
    """The inverse of ``trit_pack``; padding may get any code.

    Nothing is done for a batch that is too small for a block of ``tokens``.
    """
    unpack = _unpacking(lanes, isa)

    def body(a: int, chunk: int) -> None:
        if lookup_rows(word(word(a, 6), 0), tokens) == 0:
            return
        code_tiles, tiles, step = word(a, 3), word(a, 4), word(a, 5)
        digits = scratch(1280)
        for row in range(chunk * step * 4, min(word(a, 2), (chunk + 1) * step) * 4):
            for tile in range(0, tiles, PLANES):
                first = tile // PLANES * DIGITS
                source = word(a, 0) + (row * tiles + tile) * lanes
                target = word(a, 1) + (row * code_tiles + first) * lanes
                unpack(source, min(PLANES, tiles - tile), digits)
                for index in range(min(DIGITS, code_tiles - first)):
                    place = digits + index * PLANES * lanes
                    codes = splat(0x55, "u8", lanes) + load(place, "u8", lanes)
                    codes = codes + shift_left(load(place + lanes, "u8", lanes), 2)
                    codes = codes + shift_left(load(place + 2 * lanes, "u8", lanes), 4)
                    codes = codes + shift_left(load(place + 3 * lanes, "u8", lanes), 6)
                    store(target + index * lanes, codes)

    return body


@kernel("trit_entries", "trits entries groups code_tiles tiles step rows")
def trit_entries(lanes: int, tokens: int, isa: str) -> Body:
    """What ``lookup_entries`` makes of the same weights: uint8 ``[passes, 4 * groups, 8]``."""
    unpack = _unpacking(lanes, isa)

    def body(a: int, chunk: int) -> None:
        if lookup_rows(word(word(a, 6), 0), tokens) == 0:
            return
        groups, code_tiles, tiles, step = word(a, 2), word(a, 3), word(a, 4), word(a, 5)
        plane = groups * 4 * BYTES
        digits = scratch(1280)
        for tile in range(0, tiles, PLANES):
            first = tile // PLANES * DIGITS
            for row in range(chunk * step * 4, min(groups, (chunk + 1) * step) * 4):
                source = word(a, 0) + (row * tiles + tile) * lanes
                unpack(source, min(PLANES, tiles - tile), digits)
                target = word(a, 1) + first * (lanes // BYTES) * plane + row * BYTES
                for index in range(min(DIGITS, code_tiles - first)):
                    place = digits + index * PLANES * lanes
                    low = load(place + lanes, "u8", lanes)
                    low = low + shift_left(low, 1) + load(place, "u8", lanes)
                    high = load(place + 3 * lanes, "u8", lanes)
                    high = high + shift_left(high, 1) + load(place + 2 * lanes, "u8", lanes)
                    entries = low + high + shift_left(high, 3)
                    store_planes(entries, target + index * (lanes // BYTES) * plane, plane)

    return body
