"""Where in a file the weights of one expert lie."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import Matrix
from edgerun.graph.mapped_file import MappedFile, find_file


@dataclass(frozen=True, slots=True)
class Slab:
    """A piece of a file that one read brings into memory.

    Attributes:
        file: that it lies in.
        offset: of its first byte.
        length: in bytes.
    """

    file: MappedFile
    offset: int
    length: int


def slab(matrices: Iterable[Matrix]) -> Slab | None:
    """The shortest piece of a file that holds some matrices; None if they are not all in one."""
    arrays = [array for matrix in matrices for array in arrays_of(matrix)]
    pieces = [(find_file(array), array.nbytes) for array in arrays]
    places = [(view[0], view[1], view[1] + nbytes) for view, nbytes in pieces if view is not None]
    if len(places) < len(pieces) or len({id(file) for file, _, _ in places}) != 1:
        return None
    first = min(start for _, start, _ in places)
    return Slab(places[0][0], first, max(end for _, _, end in places) - first)


def arrays_of(matrix: Matrix) -> list[NDArray[Any]]:
    """Codes, scales and zero points, as far as there are any, or the elements alone."""
    if not isinstance(matrix, PackedWeight):
        return [matrix]
    zeros = [] if matrix.zeros is None else [matrix.zeros]
    return [matrix.codes, matrix.scales, *zeros]
