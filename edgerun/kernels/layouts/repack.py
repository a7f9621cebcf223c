"""Rearranges packed codes from the bundle's order into the stream layout (``layout.py``).

Source: ``row_bytes`` bytes a row, consecutive codes in consecutive bits. A vector of the result
takes its plane p from ``lanes * bits / 8`` consecutive source bytes, whose codes are first spread
to one a byte: with 2 bits, a byte ``dcba`` becomes ``000d000c000b000a`` by two shifts.
"""

from __future__ import annotations

from numba import njit

from edgerun.kernels.jit.registry import Body, kernel
from edgerun.kernels.lang.simd import (
    cast,
    load,
    mask_bits,
    reinterpret,
    shift_left,
    shift_right,
    splat,
    store,
)
from edgerun.kernels.lang.word import byte_at, word

GROUP = 4


@njit(inline="always")
def _spread2(address, quarter):  # type: ignore[no-untyped-def]
    """``quarter`` bytes of 2-bit codes as ``4 * quarter`` bytes."""
    v = cast(load(address, "u8", quarter), "i32")
    v = mask_bits(v | shift_left(v, 12), 0x000F000F)
    return reinterpret(mask_bits(v | shift_left(v, 6), 0x03030303), "u8")


@njit(inline="always")
def _spread4(address, half):  # type: ignore[no-untyped-def]
    """``half`` bytes of 4-bit codes as ``2 * half`` bytes."""
    v = cast(load(address, "u8", half), "i16")
    return reinterpret(mask_bits(v | shift_left(v, 4), 0x0F0F), "u8")


@njit(inline="always")
def _tile2(source, target, quarter):  # type: ignore[no-untyped-def]
    v = _spread2(source, quarter) | shift_left(_spread2(source + quarter, quarter), 2)
    v = v | shift_left(_spread2(source + 2 * quarter, quarter), 4)
    store(target, v | shift_left(_spread2(source + 3 * quarter, quarter), 6))


@njit(inline="always")
def _tile4(source, target, half):  # type: ignore[no-untyped-def]
    store(target, _spread4(source, half) | shift_left(_spread4(source + half, half), 4))


@njit(inline="always")
def _tile8(source, target, lanes):  # type: ignore[no-untyped-def]
    store(target, load(source, "u8", lanes))


@njit(inline="always")
def _zero_codes(v):  # type: ignore[no-untyped-def]
    """Bits that are set where a 2-bit code is 0."""
    return mask_bits(v | shift_right(v, 1), 0x55) ^ splat(0x55, "u8", 16)


@njit(inline="always")
def _any_zero(row, row_bytes):  # type: ignore[no-untyped-def]
    """Bytes of which some are nonzero if a row of 2-bit codes has a 0."""
    zeros = splat(0, "u8", 16)
    for index in range(0, row_bytes - 15, 16):
        zeros = zeros | _zero_codes(load(row + index, "u8", 16))
    for index in range(row_bytes // 16 * 16, row_bytes):
        zeros = zeros | _zero_codes(splat(byte_at(row, index), "u8", 16))
    return zeros


@kernel("repack", "source codes rows row_bytes tiles spare step zeros")
def repack(bits: int, lanes: int) -> Body:
    """Writes ``step`` groups of four rows a chunk.

    ``spare`` is ``[4 * groups, lanes]`` zeroed bytes, where the last, partial tile of a row is
    completed with zeros; missing rows stay as they are. ``zeros`` is ``[chunks, 16]`` bytes: any
    is nonzero if a chunk has a 2-bit code 0.
    """
    part = lanes * bits // 8

    def body(a: int, chunk: int) -> None:
        source, rows, row_bytes = word(a, 0), word(a, 2), word(a, 3)
        tiles, whole = word(a, 4), word(a, 3) // lanes
        zeros = splat(0, "u8", 16)
        last = min(rows, (chunk + 1) * word(a, 6) * GROUP)
        for number in range(chunk * word(a, 6) * GROUP, last):
            row = source + number * row_bytes
            spare = word(a, 5) + number * lanes
            for index in range(whole * lanes, row_bytes):
                store(spare + index - whole * lanes, load(row + index, "u8", 1))
            if bits == 2:
                zeros = zeros | _any_zero(row, row_bytes)
            for tile in range(tiles):
                start = row + tile * lanes if tile < whole else spare
                target = word(a, 1) + (number * tiles + tile) * lanes
                if tile > whole:
                    store(target, splat(0, "u8", lanes))
                elif bits == 2:
                    _tile2(start, target, part)
                elif bits == 4:
                    _tile4(start, target, part)
                else:
                    _tile8(start, target, lanes)
        store(word(a, 7) + chunk * 16, zeros)

    return body
