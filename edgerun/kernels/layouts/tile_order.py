"""Tile order: how codes and activations lie in memory for products of many batch rows.

Products of tile registers (``amx.py``): a tile is 1 KB of operands at most, read in one piece: of
activations 16 rows of ``depth`` bytes of K, of codes ``depth / 4`` lines of 64 bytes, four of K of
16 weight rows each (a panel of the stream layout, unpacked). Two tiles side by side are followed by
those of the next ``depth`` of K: so 32 batch rows, or two panels, are a stretch of memory that a
product reads from its start to its end.

Activations are int8 ``[rows / 32, K / depth, 2, 16, depth]``. Where blocks have scales, those of
32 rows are turned: float32 ``[rows / 32, blocks, 32]``, and the sums of the blocks likewise. Rows
are filled up with zeros.

A thread unpacks a strip of panels, all of K, into an area of its own, and multiplies it by all
rows of a batch before the next one.

Products of vectors (``gemm.py``) have tiles of ``tokens`` batch rows and four bytes of K, one after
the other: int8 ``[rows / tokens, K / 4, tokens, 4]``. So a kernel reads them as one stream, by one
address, where rows apart take an address each, and these more registers than there are. Scales of
blocks, and what their sums begin with, are turned for as many rows.
"""

from __future__ import annotations

from dataclasses import dataclass

SIDE = 16  # rows of a tile
TOKENS = 2 * SIDE  # batch rows side by side
MOST_DEPTH = 64
STRIP_BYTES = 896 * 1024  # that leave the second cache room for activations; more lose all
MOST_PANELS = 8  # of a strip: more of them share what is read of activations, and gain nothing
PAIR = 2  # panels side by side
K_STEP = 4  # codes of one row in a dword, which a lane multiplies at once


@dataclass(frozen=True)
class TileOrder:
    """How activations lie in memory.

    Attributes:
        side: batch rows of a tile.
        depth: bytes of K in a tile.
        pair: tiles side by side.
    """

    side: int
    depth: int
    pair: int = 1

    @property
    def tokens(self) -> int:
        """Batch rows side by side."""
        return self.side * self.pair

    @property
    def constants(self) -> dict[str, int | str]:
        """Those of the kernels that bring rows into this order."""
        return {"side": self.side, "depth": self.depth, "pair": self.pair}


def register_order(block: int) -> TileOrder:
    """That of products of tile registers; ``block`` weights share a scale, or 0 a row."""
    return TileOrder(SIDE, depth_of(block), PAIR)


def vector_order(tokens: int) -> TileOrder:
    """That of products of vectors, ``tokens`` batch rows at a time."""
    return TileOrder(tokens, K_STEP)


def depth_of(block: int) -> int:
    """K of a tile where ``block`` weights share a scale; 0 where a row has one."""
    return min(block or MOST_DEPTH, MOST_DEPTH)


def strip_panels(k: int) -> int:
    """Panels of a strip: as many pairs as fit, and one where K is longer than a cache."""
    return max(PAIR, min(MOST_PANELS, STRIP_BYTES // (SIDE * k) // PAIR * PAIR))


def area_bytes(k: int, blocks: int, *, packed: bool) -> int:
    """Of a thread: a strip, and 32 rows of activations unless those are in tile order."""
    strip = strip_panels(k) * SIDE * k
    return strip if packed else strip + TOKENS * (k + 2 * 4 * blocks)
