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

Times are by the clock, of all threads together, and which way is faster depends on how many there
are: they share memory and the last cache, and what is done for a block of 16 rows before it is
multiplied, to transpose or to pack them, is work of one thread, however many wait. So they are
taken with one thread and with as many as are usual, each says with how many, and ``of_threads``
chooses.

A ``machine.json`` may come from another version of edgerun. The profile keeps times as the file has
them (``stored``), and ``read_layers`` says what this version makes of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import msgspec

from edgerun.machine.devices import Count

VERSION = 2  # of what is timed, and how; 1 did not say with how many threads
TURNS, BLOCKS = (1, 4, 16), (16, 128)  # rows that are timed
MOST = 512  # rows of a call, as the choice looks at them
WORTH = 1.02  # how many times as fast blocks must be: less is noise, and turns need no memory

# Of a small layer: an hour, or a trillionth of a second, is no measurement.
LayerSeconds: TypeAlias = Annotated[float, msgspec.Meta(gt=1e-12, le=3600.0)]
ByRows: TypeAlias = Mapping[Count, LayerSeconds]


@dataclass(frozen=True, slots=True)
class RowTimes:
    """Seconds of a layer of a kernel family.

    Attributes:
        turns: by the ``TURNS`` rows.
        blocks: by path, by the ``BLOCKS`` rows.
        threads: that shared the work.
        version: as which they were measured.

    Raises:
        ValueError: rows are missing, or times are of another version.
    """

    turns: ByRows
    blocks: Mapping[str, ByRows]
    threads: Count
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"the times are of version {self.version}, not {VERSION}")
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
# By instruction set and kernel family, in the form of JSON; of what versions ever.
StoredTimes: TypeAlias = Mapping[str, Mapping[str, Any]]


def stored(layers: Mapping[str, Layers]) -> Mapping[str, Any]:
    """Times by kernel family, in the form in which a profile keeps them."""
    by_family: Mapping[str, Any] = msgspec.json.decode(msgspec.json.encode(layers))
    return by_family


def read_layers(content: object) -> Layers:
    """A family's times as a profile keeps them; none if they are of another version or damaged."""
    try:
        return msgspec.convert(content, Layers, str_keys=True)
    except msgspec.ValidationError:
        return ()


def of_threads(layers: Layers, threads: int) -> Layers:
    """Those that were measured with so many threads, or else with the nearest number."""
    nearest = min(
        (times.threads for times in layers), key=lambda count: abs(math.log(count / threads))
    )
    return tuple(times for times in layers if times.threads == nearest)


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
    each_four = max(0.0, turns[16] - turns[4]) / 3
    whole, rest = divmod(rows, 4)
    if not whole:
        return min(rest * turns[1], max(turns[1], turns[4]))
    return turns[4] + (whole - 1) * each_four + min(rest * turns[1], each_four)


def blocks_seconds(times: RowTimes, path: str, rows: int, tokens: int) -> float:
    """What so many rows take by a path, and those that it leaves to turns.

    Args:
        times: of the family.
        path: one of ``times.blocks``.
        rows: of the batch.
        tokens: as of ``rows_in_blocks``; blocks of any size cost as much as whole sixteens.
    """
    by_rows, done = times.blocks[path], rows_in_blocks(rows, tokens)
    unit = max(tokens, 0) or 16
    padded = -(-done // unit) * unit
    a_row = max(0.0, by_rows[128] - by_rows[16]) / (128 - 16)
    once = max(0.0, by_rows[16] - a_row * 16)
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
