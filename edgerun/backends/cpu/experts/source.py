"""Where the weights of experts are read from: of each all at once, where they lie side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import BackendError
from edgerun.files.direct import DirectFile, DirectRead, span
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import ExpertStack, Matrix
from edgerun.graph.mapped_file import MappedFile, find_file
from edgerun.graph.slabs import Slab, arrays_of, slab
from edgerun.kernels.host.huge_pages import ReadBuffer

MOST_GAPS = 1.25  # a slab with so many times the bytes of its arrays is read piece by piece


class OpenFiles:
    """Files of weights, each opened once more."""

    def __init__(self, *, direct: bool) -> None:
        """None is open yet; they are to be read past the system's cache if ``direct``."""
        self._direct = direct
        self._files: dict[int, tuple[MappedFile, DirectFile]] = {}

    def open(self, file: MappedFile) -> DirectFile:
        """A mapped file for reading its pieces.

        Raises:
            BackendError: the system does not open it.
        """
        if id(file) not in self._files:
            try:
                opened = DirectFile(file.descriptor, file.check, direct=self._direct)
            except OSError as error:
                raise BackendError(
                    f"the file of weights cannot be opened to read experts: {error.strerror}; "
                    "close other files, or allow this process more of them, and try again"
                ) from error
            self._files[id(file)] = file, opened
        return self._files[id(file)][1]

    def check(self) -> None:
        """Checks that the files are what they were when they were opened.

        Raises:
            BackendError: one is not.
        """
        for _, opened in tuple(self._files.values()):  # a reader may open another
            opened.check()


@dataclass(frozen=True, slots=True)
class StoredExpert:
    """An expert in its file.

    Attributes:
        matrices: where they are mapped.
        slab: that holds all of them; None if they are spread over their file, or files.
        places: where the arrays of each (``slabs.arrays_of``) begin in the slab.
    """

    matrices: tuple[Matrix, ...]
    slab: Slab | None
    places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Content:
    """What was read of an expert.

    Attributes:
        stored: what was read.
        memory: the bytes of its slab, uint8; None where it has none and nothing was read.
    """

    stored: StoredExpert
    memory: NDArray[np.uint8] | None

    @property
    def nbytes(self) -> int:
        """Bytes that are read by whoever takes the matrices."""
        if self.memory is None:
            return sum(matrix.nbytes for matrix in self.stored.matrices)
        return len(self.memory)

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """The matrices, in memory if they were read."""
        memory, slab = self.memory, self.stored.slab
        if memory is None or slab is None:
            return self.stored.matrices
        return tuple(_moved(matrix, memory, slab.offset) for matrix in self.stored.matrices)


class ExpertSource:
    """The experts of a layer in their file."""

    def __init__(self, stacks: Sequence[ExpertStack], files: OpenFiles) -> None:
        """Takes the stacks, and who opens files."""
        self._stacks, self._files = stacks, files
        self._stored: dict[int, StoredExpert] = {}

    def read(self, expert: int, buffer: ReadBuffer) -> Content:
        """Reads what belongs to an expert.

        Args:
            expert: its number.
            buffer: where to; it is taken until the content is not needed any more.

        Raises:
            BackendError: the file was changed or cut off, or cannot be read.
        """
        stored = self.stored(expert)
        piece = stored.slab
        if piece is None:
            return Content(stored, None)
        room = buffer.take(span(piece.offset, piece.length))
        content = self._files.open(piece.file).read_into(piece.offset, piece.length, room)
        return Content(stored, np.frombuffer(content, np.uint8))

    def stored(self, expert: int) -> StoredExpert:
        """Where an expert is."""
        stored = self._stored.get(expert)
        if stored is None:
            stored = self._stored[expert] = self._find(expert)
        return stored

    def direct_read(self, expert: int) -> DirectRead | None:
        """How others can read an expert all at once; None where they cannot.

        Raises:
            BackendError: the system does not open its file.
        """
        piece = self.stored(expert).slab
        if piece is None:
            return None
        return self._files.open(piece.file).direct_read(piece.offset, piece.length)

    def _find(self, expert: int) -> StoredExpert:
        matrices = tuple(stack.matrices[expert] for stack in self._stacks)
        piece = slab(matrices)
        if piece is None or piece.length > MOST_GAPS * sum(matrix.nbytes for matrix in matrices):
            return StoredExpert(matrices, None)
        return StoredExpert(matrices, piece, tuple(_starts(matrices, piece.offset)))


def _starts(matrices: Sequence[Matrix], offset: int) -> Iterator[int]:
    """Where the arrays of matrices begin in a slab that begins at an offset."""
    for matrix in matrices:
        for array in arrays_of(matrix):
            place = find_file(array)
            assert place is not None  # it lies in the slab
            yield place[1] - offset


def _moved(matrix: Matrix, memory: NDArray[np.uint8], offset: int) -> Matrix:
    """A matrix of a mapped file in memory that holds the file's bytes from ``offset`` on."""
    if not isinstance(matrix, PackedWeight):
        return _view(matrix, memory, offset)
    codes, scales = (_view(array, memory, offset) for array in (matrix.codes, matrix.scales))
    zeros = None if matrix.zeros is None else _view(matrix.zeros, memory, offset)
    return replace(matrix, codes=codes, scales=scales, zeros=zeros)


def _view(array: NDArray[Any], memory: NDArray[np.uint8], offset: int) -> NDArray[Any]:
    if not array.flags.c_contiguous:  # a turned matrix
        return _view(array.T, memory, offset).T
    place = find_file(array)
    assert place is not None  # it lies in a slab
    start = place[1] - offset
    return memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
