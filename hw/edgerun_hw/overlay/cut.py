"""How a matrix is cut into commands of the overlay.

A command multiplies by integers alone. A matrix whose rows have one scale runs over the whole of K
at once; one with scales per block of K is cut into one command per block, because the scales
differ. Rows are cut to what the accumulators hold.

* Ternary weights go three to a code (``LookupMode.TERNARY``).
* Wider ones are multiples of an activation (``LookupMode.MULTIPLES``): up to 13 in magnitude with
  one digit, eight bits with two (``split_int8``), in two rows of the device's matrix each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from edgerun_hw.overlay.command import Capabilities
from edgerun_hw.overlay.packing import LookupMode
from edgerun_hw.overlay.register_map import MAX_MAGNITUDE

RESULTS_PER_CYCLE = 4
# Of the RTL, checked against the simulator: a tile's tables take this long to fill, and a command
# more costs about this much.
FILL_CYCLES = 16
COMMAND_CYCLES = 32
MAX_TERNARY = 1


@dataclass(frozen=True)
class Cut:
    """How a matrix ``[N, K]`` is cut into commands.

    Attributes:
        shape: ``(N, K)``.
        mode: what a code stands for.
        digits: rows of the device's matrix for each row: 1, or 2 for split weights.
        block: weights of a row that one command sees, K if it is all of them.
        piece_rows: most rows N of a command.
        tail_rows: rows of the last command, cut off so that little is left to drain when the last
            lookup is done; 0 for what is left over.
    """

    shape: tuple[int, int]
    mode: LookupMode
    digits: int
    block: int
    piece_rows: int
    tail_rows: int = 0

    @property
    def blocks(self) -> int:
        """Commands along K."""
        return -(-self.shape[1] // self.block)

    def pieces(self) -> Iterator[tuple[int, int]]:
        """First row and row after the last, of each command along N."""
        rows, body = self.shape[0], self.shape[0] - self.tail_rows
        for first in range(0, body, self.piece_rows):
            yield first, min(body, first + self.piece_rows)
        if body < rows:
            yield body, rows

    def columns(self, block: int) -> tuple[int, int]:
        """First activation and the one after the last of a block."""
        return block * self.block, min(self.shape[1], (block + 1) * self.block)


def cut_matrix(shape: tuple[int, int], largest: int, block: int, capabilities: Capabilities) -> Cut:
    """Chooses mode and sizes.

    Args:
        shape: ``(N, K)``.
        largest: magnitude of the largest integer weight.
        block: weights of a row that share a scale; K for all of them.
        capabilities: of the overlay.
    """
    digits = 1 if largest <= MAX_MAGNITUDE else 2
    ternary = largest <= MAX_TERNARY and capabilities.ternary
    mode = LookupMode.TERNARY if ternary else LookupMode.MULTIPLES
    rows = capabilities.max_row_beats * capabilities.rows_per_beat // digits
    tail = _tail_rows(shape, mode, capabilities) if block >= shape[1] and digits == 1 else 0
    return Cut(shape, mode, digits, min(block, shape[1]), rows, tail)


def drain_cycles(can: Capabilities, columns: int) -> float:
    """Cycles in which the results of a row beat leave.

    With glue those of one column are scaled, one a cycle, for the commands behind them.
    """
    plain = can.rows_per_beat * columns / RESULTS_PER_CYCLE
    return max(plain, can.rows_per_beat) if can.glue else plain


def _tail_rows(shape: tuple[int, int], mode: LookupMode, can: Capabilities) -> int:
    """Rows to cut off for a last command of their own; 0 where that gains nothing.

    While the last command looks up, the one before it drains, so the last one must be long enough
    for that, and no shorter than filling tables takes.
    """
    beats, tiles = -(-shape[0] // can.rows_per_beat), mode.tiles(shape[1])
    last = beats % can.max_row_beats or can.max_row_beats  # beats of the last command otherwise
    drain = drain_cycles(can, can.columns)
    tail = beats * drain / (tiles + drain)
    if beats - tail > can.max_row_beats:  # the command before it is a whole one
        tail = can.max_row_beats * drain / tiles
    tail = min(max(FILL_CYCLES, math.ceil(tail)), can.max_row_beats)
    gain = (last - tail) * drain - COMMAND_CYCLES
    too_short = last < tail and beats > last
    worth_it = gain > 0 and last >= 2 * tail
    return tail * can.rows_per_beat if too_short or worth_it else 0
