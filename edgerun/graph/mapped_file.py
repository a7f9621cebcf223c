"""A file of weights: mapped, and readable without mapping."""

from __future__ import annotations

import mmap
import os
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray


class MappedFile(mmap.mmap):
    """A file mapped for reading, whose descriptor stays open.

    Attributes:
        descriptor: of the file, closed with the mapping.
    """

    descriptor: int

    def __new__(cls, descriptor: int) -> MappedFile:
        """Maps a whole file; the caller goes on owning ``descriptor``."""
        mapped = super().__new__(cls, descriptor, 0, access=mmap.ACCESS_READ)
        mapped.descriptor = os.dup(descriptor)
        weakref.finalize(mapped, os.close, mapped.descriptor)
        return mapped


def find_file(array: NDArray[Any]) -> tuple[MappedFile, int] | None:
    """The mapped file that an array is a view of, and the array's offset in it in bytes."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
        if isinstance(owner, memoryview):
            owner = owner.obj
    if not isinstance(owner, MappedFile):
        return None
    return owner, array.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data


def forget_array(array: NDArray[Any]) -> None:
    """Gives the pages of an array back to the system, if it is a view of a mapped file.

    They stay readable: the next access maps them again, from the page cache while the system
    keeps them there. Without this a weight and the copy made from it both count as resident.
    """
    found = find_file(array)
    if found is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    file, start = found
    page = mmap.PAGESIZE
    # Rounded outwards: a page shared with a neighbour is read again when that is needed.
    offset = start // page * page
    end = min(len(file), -(-(start + array.nbytes) // page) * page)
    file.madvise(mmap.MADV_DONTNEED, offset, end - offset)
