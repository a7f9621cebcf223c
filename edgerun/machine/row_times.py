"""From how many batch rows on it is faster to take rows in blocks than in turns.

A linear layer's rows take turns with its weights, four, two or one at a time; or weights are
brought into another form once, and blocks of rows are multiplied by that: unpacked (``gemm``), as
tiles of the matrix unit (``amx``), as numbers of table entries (``lookup``). Blocks cost something
before their first row, turns do not. ``edgerun doctor --calibrate`` times a few numbers of rows
both ways for each kernel family; ``blocks_from`` says what follows for all others.

The rule has the form ``blocks <= fours + rest``: of 16 rows by blocks against as many turns of four
and of one. Two more figures are kept because three are not enough. Sixteen rows in turns cost less
than four times four where the first four wait for memory (int8 weights of 2560 x 6912 on a Zen 5:
0.52 ms for four rows, 1.10 for 16). And what is done once a call, such as unpacking, is not paid
again by the second 16 rows, which 128 rows by blocks tell. A small layer and a large one are timed:
trits of a large one take longer to expand, as they come from farther away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec

VERSION = 1  # of what is timed, and how
TURNS, BLOCKS = (1, 4, 16), (16, 128)  # rows that are timed
MOST = 512  # rows of a call, as the choice looks at them
WORTH = 1.02  # how many times as fast blocks must be: less is noise, and turns need no memory

# Of a small layer: an hour, or a trillionth of a second, is no measurement.
LayerSeconds: TypeAlias = Annotated[float, msgspec.Meta(gt=1e-12, le=3600.0)]
Rows: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
ByRows: TypeAlias = Mapping[Rows, LayerSeconds]


@dataclass(frozen=True, slots=True)
class RowTimes:
    """Seconds of a layer of a kernel family.

    Attributes:
        turns: by the ``TURNS`` rows.
        blocks: by path, by the ``BLOCKS`` rows.
        version: as which they were measured; those of another are not looked at.

    Raises:
        ValueError: rows are missing.
    """

    turns: ByRows
    blocks: Mapping[str, ByRows]
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            return
        by_path = [(by_rows, BLOCKS) for by_rows in self.blocks.values()]
        for by_rows, expected in ((self.turns, TURNS), *by_path):
            if missing := [rows for rows in expected if rows not in by_rows]:
                raise ValueError(f"there is no time of {missing[0]} rows")


@dataclass(frozen=True, slots=True)
class BlockPath:
    """What multiplies blocks of rows of a layer.

    Attributes:
        name: the path; empty if all rows take turns.
        least: rows of a batch from which on it is taken.
    """

    name: str = ""
    least: int = 0


ALL_IN_TURNS = BlockPath()
Layers: TypeAlias = Annotated[tuple[RowTimes, ...], msgspec.Meta(min_length=1)]


def rows_in_blocks(rows: int, tokens: int) -> int:
    """How many of a batch's rows are done in blocks, as kernels divide them (``linear/turns.py``).

    Args:
        rows: of the batch.
        tokens: rows of a block; those of one that is not half full take turns. Negative for
            blocks of any size.
    """
    return rows if tokens < 0 else min(rows, (rows + tokens // 2) // tokens * tokens)


def turns_seconds(turns: ByRows, rows: int) -> float:
    """What so many rows take in turns, by what 1, 4 and 16 took.

    Of a rest of up to three rows each costs what one alone does, and all no more than four.
    """
    one, four, sixteen = (turns[count] for count in TURNS)
    each_four = max(0.0, sixteen - four) / 3
    whole, rest = divmod(rows, 4)
    if not whole:
        return min(rest * one, max(one, four))
    return four + (whole - 1) * each_four + min(rest * one, each_four)


def blocks_seconds(times: RowTimes, path: str, rows: int, tokens: int) -> float:
    """What so many rows take by a path, and those that it leaves to turns.

    Args:
        times: of the family.
        path: one of ``times.blocks``.
        rows: of the batch.
        tokens: as of ``rows_in_blocks``; blocks of any size cost as much as whole sixteens.
    """
    sixteen, many = (times.blocks[path][count] for count in BLOCKS)
    done = rows_in_blocks(rows, tokens)
    unit = max(tokens, 0) or BLOCKS[0]
    padded = -(-done // unit) * unit
    a_row = max(0.0, many - sixteen) / (BLOCKS[1] - BLOCKS[0])
    once = max(0.0, sixteen - a_row * BLOCKS[0])
    seconds = once + a_row * padded if done else 0.0
    return seconds + (turns_seconds(times.turns, rows - done) if rows > done else 0.0)


def gain(times: RowTimes, path: str, rows: int, tokens: int) -> float:
    """What blocks of a path gain, as a logarithm; negative where they lose, or gain too little."""
    in_blocks = blocks_seconds(times, path, rows, tokens)
    return math.log(turns_seconds(times.turns, rows) / (WORTH * in_blocks))


def blocks_from(layers: Sequence[RowTimes], path: str, tokens: int) -> int:
    """From how many rows on a path gains most, up to ``MOST``; 0 if it gains nothing.

    The choice changes once, though blocks that are not full may be slower than turns once more
    behind it: what counts is the sum of all gains in all layers, of twice as many rows half as much
    each. Of the numbers of rows that were timed, none is given to blocks that were slower in a
    layer.
    """
    slower = [rows for rows in BLOCKS for times in layers if gain(times, path, rows, tokens) <= 0]
    least, total, most = 0, 0.0, 0.0
    for rows in range(MOST, max(slower, default=1), -1):
        total += sum(gain(times, path, rows, tokens) for times in layers) / rows
        if total > most:
            least, most = rows, total
    return least


def quickest_path(layers: Sequence[RowTimes], tokens: Mapping[str, int]) -> BlockPath:
    """The path for blocks of rows, and from how many on, so that it gains most.

    Of several it is the one that is quickest for many rows.

    Args:
        layers: times of a family's layers of several sizes.
        tokens: rows of a block, by the paths that there are.
    """
    chosen, share = ALL_IN_TURNS, 1.0
    for path in sorted(tokens):
        if not all(path in times.blocks for times in layers):
            continue
        least = blocks_from(layers, path, tokens[path])
        of_turns = math.prod(
            blocks_seconds(times, path, BLOCKS[-1], tokens[path])
            / turns_seconds(times.turns, BLOCKS[-1])
            for times in layers
        )
        if least and of_turns < share:
            chosen, share = BlockPath(path, least), of_turns
    return chosen
