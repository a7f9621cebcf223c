"""Vectors of several sums, made one vector with a sum in each lane.

A tile keeps a vector of partial sums for each of its cells, a pair of weight row and token. Adding
up their lanes one vector after the other would cost as much as multiplying; here four vectors are
added up together, by shuffles that stay within 16 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from llvmlite import ir

FOUR = 4  # elements of 16 bytes, and cells that are added up together
NARROW = 4  # lanes that ``merge_cells`` adds up in the type they have

_Cell = TypeVar("_Cell")


def padded(cells: Sequence[_Cell]) -> list[_Cell]:
    """The cells, the last one repeated until they are a multiple of four."""
    return [*cells, *[cells[-1]] * (-len(cells) % FOUR)]


def merge_cells(builder: Any, vectors: list[Any]) -> list[Any]:
    """Adds every four vectors up to one, in which every 16 bytes have 4 bytes of each cell.

    Lanes of less than 4 bytes are added up apart: ``NARROW`` of them each.
    """
    pairs = [_add_up(builder, *vectors[at : at + 2]) for at in range(0, len(vectors), 2)]
    return [_add_up(builder, *pairs[at : at + 2]) for at in range(0, len(pairs), 2)]


def gather_lanes(builder: Any, vectors: list[Any]) -> Any:
    """Adds up the 16-byte parts of int32 vectors that ``merge_cells`` made: a lane a cell."""
    parts = vectors[0].type.count // FOUR
    while parts > 1:
        step = min(2, len(vectors))
        vectors = [_halve(builder, vectors[at : at + step]) for at in range(0, len(vectors), step)]
        parts //= 2
    while len(vectors) > 1:
        pairs = range(0, len(vectors), 2)
        vectors = [_joined(builder, vectors[at], vectors[at + 1]) for at in pairs]
    return vectors[0]


def transposed(builder: Any, four: list[Any]) -> list[Any]:
    """Four vectors of n elements as n of four, n being 1 or a multiple of four."""
    a, b, c, d = four
    if a.type.count == 1:
        return [_joined(builder, _joined(builder, a, b), _joined(builder, c, d))]
    columns = []
    for pairs in ((0, 4, 1, 5), (2, 6, 3, 7)):
        left, right = (_in_parts(builder, one, other, pairs) for one, other in ((a, b), (c, d)))
        columns.append(_in_parts(builder, left, right, (0, 1, 4, 5)))
        columns.append(_in_parts(builder, left, right, (2, 3, 6, 7)))
    return [
        _shuffle(builder, column, column, range(part * FOUR, (part + 1) * FOUR))
        for part in range(a.type.count // FOUR)
        for column in columns
    ]


def _add_up(builder: Any, left: Any, right: Any) -> Any:
    """Sums of neighbouring 4 bytes, in every 16 bytes two of ``left`` and two of ``right``."""
    words = ir.VectorType(ir.IntType(32), left.type.count * left.type.element.width // 32)
    a, b = (builder.bitcast(one, words) for one in (left, right))
    even, odd = (
        builder.bitcast(_in_parts(builder, a, b, order), left.type)
        for order in ((0, 2, 4, 6), (1, 3, 5, 7))
    )
    return builder.add(even, odd)


def _halve(builder: Any, vectors: list[Any]) -> Any:
    """Adds up every two neighbouring 16-byte parts of one or two vectors."""
    count = vectors[0].type.count * len(vectors)
    even = [i for i in range(count) if i // FOUR % 2 == 0]
    halves = [
        _shuffle(builder, vectors[0], vectors[-1], [i + start for i in even]) for start in (0, FOUR)
    ]
    return builder.add(*halves)


def _in_parts(builder: Any, left: Any, right: Any, order: Sequence[int]) -> Any:
    """Chooses elements of every 16 bytes: 0 to 3 are those of ``left``, 4 to 7 of ``right``."""
    count = left.type.count
    places = [part + i % FOUR + i // FOUR * count for part in range(0, count, FOUR) for i in order]
    return _shuffle(builder, left, right, places)


def _joined(builder: Any, left: Any, right: Any) -> Any:
    return _shuffle(builder, left, right, range(2 * left.type.count))


def _shuffle(builder: Any, left: Any, right: Any, places: Sequence[int]) -> Any:
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(places)), list(places))
    return builder.shuffle_vector(left, right, mask)
