"""The same matrix of every expert of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

from edgerun.formats.base import PackedWeight

Matrix: TypeAlias = PackedWeight | NDArray[Any]


@dataclass(frozen=True, slots=True)
class ExpertStack:
    """Matrices of one shape and format, one for each expert.

    They stay apart because in the file everything that belongs to one expert lies side by side, so
    that a single read brings it into memory (``graph/slabs.py``).

    Attributes:
        matrices: ``[N, K]`` each, packed or float32, by the number of the expert.
    """

    matrices: tuple[Matrix, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """``(experts, N, K)``."""
        n, k = self.matrices[0].shape
        return len(self.matrices), int(n), int(k)

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        return sum(matrix.nbytes for matrix in self.matrices)
