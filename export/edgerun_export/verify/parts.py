"""What a forward pass in NumPy is given: tensors, and who looks on."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgerun_export.architectures import Projection

F32 = NDArray[np.float32]


class Weights(Protocol):
    """Where the forward pass finds its tensors, by Hugging Face name, as float32."""

    def vector(self, name: str) -> F32:
        """A bias or the weight of a norm, ``[n]``."""
        ...

    def matrix(self, name: str) -> F32:
        """A projection, ``[out_features, in_features]``."""
        ...

    def head_name(self) -> str:
        """Name of the head's tensor, which may be the embedding's."""
        ...

    def rows(self, name: str, rows: slice) -> F32:
        """Some rows of the embedding or the head."""
        ...


class Observer:
    """Is shown what comes by in a layer, and may put something else in its place."""

    def residual(self, hidden: F32 | None) -> None:
        """What the next part's last projection is added to; None if it is not, as it is."""

    def projection(self, projection: Projection, value: F32) -> F32:
        """The input ``[tokens, K]`` of a projection."""
        return value

    def cached(self, vectors: F32) -> F32:
        """Keys or values, ``[heads, tokens, head_dim]``."""
        return vectors
