"""Which panel each vector of a tile is, and where what belongs to it lies."""

from __future__ import annotations

from typing import Any, Protocol

from edgerun.kernels.lang.ir import at_most, integer


class Vectors(Protocol):
    """Those of a tile: as many of each of some matrices, of the first one's before the next's."""

    @property
    def vectors(self) -> int: ...

    @property
    def matrices(self) -> int: ...


def numbers_of(builder: Any, shape: Vectors, apart: Any, last: Any) -> list[Any]:
    """Which panel of its matrix each vector is, counted from the first; ``last`` at most."""
    panels = shape.vectors // shape.matrices
    return [
        at_most(builder, builder.mul(apart, integer(vector % panels)), last)
        for vector in range(shape.vectors)
    ]


def places_of(
    builder: Any, shape: Vectors, start: Any, numbers: list[Any], size: Any, between: Any
) -> list[Any]:
    """Addresses of what belongs to each vector.

    Those of a matrix are ``size`` times their numbers apart, matrices ``between``.
    """
    panels = shape.vectors // shape.matrices
    matrices = [
        builder.add(start, builder.mul(between, integer(matrix)))
        for matrix in range(shape.matrices)
    ]
    return [
        builder.add(matrices[vector // panels], builder.mul(number, size))
        for vector, number in enumerate(numbers)
    ]
