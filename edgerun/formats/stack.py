"""The same matrix, or vector, of every expert of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

from edgerun.formats.base import PackedWeight

Matrix: TypeAlias = PackedWeight | NDArray[Any]


@dataclass(frozen=True, slots=True)
class ExpertStack:
    """Matrices or vectors of one shape and format, one for each expert.

    They stay apart because in the file everything that belongs to one expert lies side by side, so
    that a single read brings it into memory (``graph/slabs.py``).

    Attributes:
        matrices: by the number of the expert, ``[N, K]`` each, packed or float32; or ``[N]``,
            float32.
    """

    matrices: tuple[Matrix, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """``(experts, N, K)``, of vectors ``(experts, N)``."""
        return len(self.matrices), *map(int, self.matrices[0].shape)

    @property
    def has_choice(self) -> bool:
        """Whether there are several experts; one alone is every token's."""
        return len(self.matrices) > 1

    def vector(self, expert: int) -> NDArray[Any]:
        """One of a stack of vectors."""
        vector = self.matrices[expert]
        assert not isinstance(vector, PackedWeight), "a vector is never packed"
        return vector

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        return sum(matrix.nbytes for matrix in self.matrices)
