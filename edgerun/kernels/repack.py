"""Rearranges packed codes from the bundle's order into the stream layout (``layout.py``).

Source: ``row_bytes`` bytes a row, consecutive codes in consecutive bits. A vector of the result
takes its plane p from ``lanes * bits / 8`` consecutive source bytes, whose codes are first spread
to one a byte: with 2 bits, a byte ``dcba`` becomes ``000d000c000b000a`` by two shifts.
"""

from __future__ import annotations

from numba import njit

from edgerun.kernels.registry import Body, kernel
from edgerun.kernels.simd import cast, load, mask_bits, reinterpret, shift_left, splat, store
from edgerun.kernels.word import word

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


@kernel("repack", "source codes rows row_bytes tiles spare")
def repack(bits: int, lanes: int) -> Body:
    """Writes one group of four rows a chunk.

    ``spare`` is ``[4 * lanes]`` zeroed bytes a chunk, where the last, partial tile of a row is
    completed with zeros; missing rows stay as they are.
    """
    part = lanes * bits // 8

    def body(a: int, chunk: int) -> None:
        source, rows, row_bytes = word(a, 0), word(a, 2), word(a, 3)
        tiles, whole = word(a, 4), word(a, 3) // lanes
        for member in range(min(GROUP, rows - chunk * GROUP)):
            row = source + (chunk * GROUP + member) * row_bytes
            spare = word(a, 5) + (chunk * GROUP + member) * lanes
            for index in range(whole * lanes, row_bytes):
                store(spare + index - whole * lanes, load(row + index, "u8", 1))
            for tile in range(tiles):
                start = row + tile * lanes if tile < whole else spare
                target = word(a, 1) + ((chunk * GROUP + member) * tiles + tile) * lanes
                if tile > whole:
                    store(target, splat(0, "u8", lanes))
                elif bits == 2:
                    _tile2(start, target, part)
                elif bits == 4:
                    _tile4(start, target, part)
                else:
                    _tile8(start, target, lanes)

    return body
