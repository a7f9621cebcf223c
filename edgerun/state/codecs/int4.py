"""Half a byte an element, and a float32 scale a vector.

Element ``i`` of the first half of a vector shares a byte with element ``i`` of its second half,
which has the upper four bits: so bytes unpack to two vectors without being interleaved. Stored
are the numbers from -7 to 7, plus 8.
"""

from __future__ import annotations

import numpy as np

from edgerun.errors import UnsupportedError
from edgerun.state.codecs.base import F32, Stored, StoredArray, quantize

LARGEST, OFFSET = 7, 8


class Int4:
    """Error of an element: at most half a scale, 1/14 of the largest element of its vector."""

    def arrays(self, dim: int) -> tuple[StoredArray, ...]:
        if dim % 2:
            raise UnsupportedError(
                f"int4 stores two elements a byte, and heads of {dim} elements are odd: choose "
                "another type for keys and values"
            )
        return StoredArray("data", np.uint8, dim // 2), StoredArray("scales", np.float32, 1)

    def encode(self, vectors: F32) -> Stored:
        data, scales = quantize(vectors, LARGEST)
        codes = (data + OFFSET).astype(np.uint8)
        half = codes.shape[-1] // 2
        return {"data": codes[..., :half] | codes[..., half:] << 4, "scales": scales}

    def decode(self, stored: Stored) -> F32:
        data = stored["data"]
        codes = np.concatenate([data & 15, data >> 4], axis=-1).astype(np.float32)
        vectors: F32 = (codes - OFFSET) * stored["scales"]
        return vectors


CODEC = Int4()
