"""How a row is cut, so that several threads can work on one."""

from __future__ import annotations

from numba import njit


@njit(inline="always")
def piece_of(width: int, pieces: int, piece: int, lanes: int) -> tuple[int, int, int]:
    """The elements of a piece: the first, where whole vectors end, and the end of all."""
    size = (width // lanes + pieces - 1) // pieces * lanes
    first, last = piece * size, min(width, (piece + 1) * size)
    if piece == pieces - 1:
        last = width
    return first, first + max(0, last - first) // lanes * lanes, last
