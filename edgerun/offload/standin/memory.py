"""The stand-in's memory: slots of equal size, and rows on their way."""

from __future__ import annotations

import mmap
import os
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

U8: TypeAlias = NDArray[np.uint8]


class Regions(msgspec.Struct, frozen=True):
    """What lies where: slots, then rows that come in, then rows that go out.

    Attributes:
        slot_bytes: of a slot, which has everything that belongs to one expert.
        slots: how many.
        rows: that fit in each direction.
        width: elements of a row, both in and out.
    """

    slot_bytes: int
    slots: int
    rows: int
    width: int

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return self.slots * self.slot_bytes + 2 * self.rows * self.width * 4

    def slot(self, memory: U8, slot: int) -> U8:
        """The memory of a slot."""
        return memory[slot * self.slot_bytes : (slot + 1) * self.slot_bytes]

    def transfers(self, memory: U8) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Rows that come in and rows that go out, float32 ``[rows, width]``."""
        both = memory[self.slots * self.slot_bytes : self.nbytes].view(np.float32)
        halves = both.reshape(2, self.rows, self.width)
        return halves[0], halves[1]


def make_memory(nbytes: int) -> tuple[int, U8]:
    """Memory that another process can have, too: its file descriptor, and what it holds, 0."""
    descriptor = os.memfd_create("edgerun-standin")
    os.ftruncate(descriptor, nbytes)
    return descriptor, map_memory(descriptor, nbytes)


def map_memory(descriptor: int, nbytes: int) -> U8:
    """What the memory of a file descriptor holds, uint8 ``[nbytes]``."""
    return np.frombuffer(mmap.mmap(descriptor, nbytes), np.uint8)
