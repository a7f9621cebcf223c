"""A byte an element, and a float32 scale a vector."""

from __future__ import annotations

import numpy as np

from edgerun.state.codecs.base import F32, Stored, StoredArray, quantize

LARGEST = 127


class Int8:
    """Error of an element: at most half a scale, 1/254 of the largest element of its vector."""

    def arrays(self, dim: int) -> tuple[StoredArray, ...]:
        return StoredArray("data", np.int8, dim), StoredArray("scales", np.float32, 1)

    def encode(self, vectors: F32) -> Stored:
        data, scales = quantize(vectors, LARGEST)
        return {"data": data, "scales": scales}

    def decode(self, stored: Stored) -> F32:
        vectors: F32 = stored["data"].astype(np.float32) * stored["scales"]
        return vectors


CODEC = Int8()
