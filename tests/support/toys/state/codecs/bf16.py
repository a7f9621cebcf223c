"""Half the bytes with float32's range: its upper 16 bits, rounded towards zero."""

import numpy as np

from edgerun.state.codecs.base import F32, Stored, StoredArray


class Bf16:
    """Error of an element: below 1/128 of it."""

    def arrays(self, dim: int) -> tuple[StoredArray, ...]:
        return (StoredArray("data", np.uint16, dim),)

    def encode(self, vectors: F32) -> Stored:
        return {"data": (vectors.view(np.uint32) >> 16).astype(np.uint16)}

    def decode(self, stored: Stored) -> F32:
        return (stored["data"].astype(np.uint32) << 16).view(np.float32)


CODEC = Bf16()
