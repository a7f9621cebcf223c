"""A file of weights: mapped, so that arrays can be views of it, and read where it matters.

Whoever touches a mapped page of a file that has become shorter is ended by the system, without a
word. So what is needed once is read instead of touched, as is what is needed again and again, a
row at a time; reading a file that has become shorter is an error like any other.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import BackendError
from edgerun.files.positioned import memory_apart, read_at
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import ExpertStack
from edgerun.graph.ir import Constant

Number = TypeVar("Number", bound=np.generic)
CHANGED = "the file of weights was changed or cut off since it was opened: load the model again"


class MappedFile(mmap.mmap):
    """A file mapped for reading, whose descriptor stays open.

    Attributes:
        descriptor: of the file, closed with the mapping.
        state: size and time of the last change when it was opened.
    """

    descriptor: int
    state: tuple[int, int]

    def __new__(cls, descriptor: int) -> MappedFile:
        """Maps a whole file; the caller goes on owning ``descriptor``."""
        mapped = super().__new__(cls, descriptor, 0, access=mmap.ACCESS_READ)
        mapped.descriptor = os.dup(descriptor)
        mapped.state = _state(mapped.descriptor)
        weakref.finalize(mapped, os.close, mapped.descriptor)
        return mapped

    def check(self) -> None:
        """Checks that the file is as it was when it was opened, by its size and time.

        Raises:
            BackendError: it is not.
        """
        if _state(self.descriptor) != self.state:
            raise BackendError(CHANGED)

    def read_into(self, offset: int, out: memoryview) -> None:
        """Reads as many bytes as there is room for.

        Raises:
            BackendError: the file ends before them.
        """
        done = 0
        while done < len(out):
            count = read_at(self.descriptor, out[done:], offset + done)
            if not count:
                raise BackendError(CHANGED)
            done += count


class ArrayReader:
    """Reads arrays of mapped files into memory that each takes over from the one before."""

    def __init__(self) -> None:
        """Makes one without memory; it grows to the size of the largest array."""
        self._memory: NDArray[np.uint8] = np.zeros(0, np.uint8)

    def read(self, array: NDArray[Number]) -> NDArray[Number]:
        """A copy of an array, valid until the next call; other arrays come back as they are.

        Raises:
            BackendError: the file has become shorter.
        """
        if find_file(array) is None or not array.flags.c_contiguous:
            return array
        if array.nbytes > len(self._memory):
            self.clear()
            self._memory = np.frombuffer(memory_apart(array.nbytes), np.uint8)
        copy = self._memory[: array.nbytes].view(array.dtype).reshape(array.shape)
        return _read(array, copy)

    def clear(self) -> None:
        """Gives the memory back."""
        self._memory = np.zeros(0, np.uint8)


def read_array(array: NDArray[Number]) -> NDArray[Number]:
    """A copy of an array; one of a mapped file, also turned, is read from the file.

    Raises:
        BackendError: the file has become shorter.
    """
    if array.flags.f_contiguous and not array.flags.c_contiguous:
        return read_array(array.T).T
    if find_file(array) is None or not array.flags.c_contiguous:
        return array.copy()
    return _read(array, np.empty(array.shape, array.dtype))


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


def files_of(constants: Iterable[Constant]) -> list[MappedFile]:
    """The files that constants are views of, each once."""
    files: dict[int, MappedFile] = {}
    for constant in constants:
        for matrix in constant.matrices if isinstance(constant, ExpertStack) else (constant,):
            view = find_file(matrix.codes if isinstance(matrix, PackedWeight) else matrix)
            if view is not None:
                files[view[0].descriptor] = view[0]
    return list(files.values())


def _read(array: NDArray[Number], copy: NDArray[Number]) -> NDArray[Number]:
    """Fills ``copy`` with what ``array``, a view of a mapped file, shows."""
    view = find_file(array)
    assert view is not None
    file, offset = view
    if copy.nbytes:
        file.read_into(offset, copy.reshape(-1).view(np.uint8).data)
    return copy


def _state(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns
