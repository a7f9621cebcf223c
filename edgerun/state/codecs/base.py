"""The contract of a codec.

A codec stores vectors, each a key or a value of one head and one token, and knows nothing of heads,
pages or layers. To add one, write a file with a ``CODEC`` into this folder. Back-ends that have no
kernels for it say so; the reference back-end and block transfers need nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Stored = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One of the arrays that a page consists of.

    Attributes:
        name: of the array.
        dtype: of its elements.
        width: how many elements a vector takes in it.
    """

    name: str
    dtype: type[np.generic]
    width: int

    @property
    def nbytes(self) -> int:
        """Bytes that a vector takes in it."""
        return self.width * np.dtype(self.dtype).itemsize


class Codec(Protocol):
    """Stores vectors of float32 in fewer bytes, or as they are."""

    def arrays(self, dim: int) -> tuple[StoredArray, ...]:
        """The arrays that vectors of ``dim`` elements are stored in.

        Raises:
            UnsupportedError: it cannot store vectors of this length.
        """

    def encode(self, vectors: F32) -> Stored:
        """Stores vectors ``[..., dim]`` as arrays ``[..., width]``, by name."""

    def decode(self, stored: Stored) -> F32:
        """Returns the vectors ``[..., dim]`` that stored arrays ``[..., width]`` stand for."""


@dataclass(frozen=True, slots=True)
class Cast:
    """A codec that changes the type of every element and nothing else.

    Attributes:
        dtype: the type that elements are stored in.
    """

    dtype: type[np.generic]

    def arrays(self, dim: int) -> tuple[StoredArray, ...]:
        return (StoredArray("data", self.dtype, dim),)

    def encode(self, vectors: F32) -> Stored:
        """See ``Codec``; rounds to nearest even."""
        return {"data": vectors.astype(self.dtype)}

    def decode(self, stored: Stored) -> F32:
        return stored["data"].astype(np.float32)


def quantize(vectors: F32, largest: int) -> tuple[NDArray[np.int8], F32]:
    """Whole numbers from ``-largest`` to ``largest``, and a scale a vector: absmax / largest.

    Rounds to nearest even; a vector of zeros has the scale 0.
    """
    scales = np.abs(vectors).max(axis=-1, keepdims=True) / np.float32(largest)
    inverse = np.where(scales > 0, 1 / np.where(scales > 0, scales, 1), 0).astype(np.float32)
    return np.rint(vectors * inverse).astype(np.int8), scales
