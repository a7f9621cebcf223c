"""How weights lie in a slot, and how many of what a thread block takes."""

from __future__ import annotations

from dataclasses import dataclass

TILE = 8  # rows of activations for which codes are read once, where experts have more than one
# Blocks whose integer sums wait for their turn in float32, and threads that share a row of a panel,
# at most, by the rows of a tile: with one row there is room for more.
STAGE = {1: 128, TILE: 16}
GROUPS = {1: 32, TILE: 16}
# Tiles of one row have fewer of those threads where there are many tiles, down to FEWEST: so many
# threads in all were fastest (H100, 1 to 8 experts).
THREADS_IN_ALL, FEWEST = 1 << 16, 8
THREADS = 128  # at most, that round a row
# Words of a matrix: where its codes, scales and bias begin in a slot, in words of 32 bits (-1: no
# bias), rows, words of a row, and blocks of a row, as activations are rounded.
CODES, SCALES, BIAS, ROWS, WORDS, BLOCKS = range(6)
# Words of a tile: its slot, its first row of activations, and how many.
SLOT, FIRST, COUNT = range(3)


@dataclass(frozen=True)
class Form:
    """How a matrix is stored.

    Attributes:
        bits: of a code, 2, 4 or 8.
        row_scale: whether a row has one scale, and activations are rounded so.
        height: rows of a panel.
        zeros: whether zero points lie among the scales (``kernels/layouts/scale_vectors.py``).
        halves: whether those are float16.
    """

    bits: int
    row_scale: bool
    height: int
    zeros: bool = False
    halves: bool = False
