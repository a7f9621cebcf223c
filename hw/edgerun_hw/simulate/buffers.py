"""Memory that a simulator and the Python around it share."""

from __future__ import annotations

import weakref
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

BEAT_BYTES = 16


class Owner(Protocol):
    """What hands buffers out."""

    def release(self, buffer: SimulatedBuffer) -> None:
        """Takes one back."""


class SimulatedBuffer:
    """Memory of a ``Simulator``; see ``port.Buffer``. Both sides see the same bytes at once."""

    def __init__(self, owner: Owner, address: int, nbytes: int) -> None:
        self._owner = weakref.ref(owner)
        # The overlay moves whole beats.
        self._whole: NDArray[np.uint8] = np.zeros(-(-nbytes // BEAT_BYTES) * BEAT_BYTES, np.uint8)
        self._array = self._whole[:nbytes]
        self._address = address

    @property
    def array(self) -> NDArray[np.uint8]:
        """The bytes, uint8 [nbytes]."""
        return self._array

    @property
    def address(self) -> int:
        """What the overlay calls the first byte."""
        return self._address

    @property
    def mapped_bytes(self) -> int:
        """Bytes that the overlay may access: whole beats."""
        return self._whole.size

    def flush(self) -> None:
        """Does nothing: there is no cache between the two sides."""

    def hand_over(self) -> None:
        """Does nothing: there is one memory for both sides."""

    def invalidate(self) -> None:
        """Does nothing: there is no cache between the two sides."""

    def free(self) -> None:
        """Gives the address range back; the overlay's accesses to it are then errors."""
        owner = self._owner()
        if owner is not None:
            owner.release(self)
