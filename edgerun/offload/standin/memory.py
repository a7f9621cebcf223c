"""The stand-in's memory: slots of equal size, rows that come in, rows that go out."""

from __future__ import annotations

import mmap
import os

import numpy as np

from edgerun.offload.sharing.device import F32, U8, DeviceSizes


def slot_of(sizes: DeviceSizes, memory: U8, slot: int) -> U8:
    """The memory of a slot."""
    return memory[slot * sizes.slot_bytes : (slot + 1) * sizes.slot_bytes]


def transfers_of(sizes: DeviceSizes, memory: U8) -> tuple[F32, F32, F32]:
    """Rows that come in, those between the products, and rows that go out."""
    rows = memory[sizes.slots * sizes.slot_bytes : sizes.nbytes].view(np.float32)
    ends = np.cumsum([sizes.rows * width for width in (sizes.width, sizes.inner)])
    x, inner, out = (part.reshape(sizes.rows, -1) for part in np.split(rows, ends))
    return x, inner, out


def make_memory(nbytes: int) -> tuple[int, U8]:
    """Memory that another process can have, too: its file descriptor, and what it holds, 0."""
    descriptor = os.memfd_create("edgerun-standin")
    os.ftruncate(descriptor, nbytes)
    return descriptor, map_memory(descriptor, nbytes)


def map_memory(descriptor: int, nbytes: int) -> U8:
    """What the memory of a file descriptor holds, uint8 ``[nbytes]``."""
    return np.frombuffer(mmap.mmap(descriptor, nbytes), np.uint8)
