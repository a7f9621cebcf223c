"""The stand-in's memory: slots of equal size, and where in them the arrays of an expert lie."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.buffers import ALIGNMENT
from edgerun.backends.cpu.experts.layout import FloatForm, PackedForm, SlotLayout
from edgerun.backends.cpu.weights import DenseWeight, Prepared
from edgerun.errors import UnsupportedError
from edgerun.kernels.layouts.stream import StreamForm, StreamWeight

U8: TypeAlias = NDArray[np.uint8]


class MatrixForm(msgspec.Struct, frozen=True):
    """What a matrix is, apart from its numbers; without ``bits`` it is float32.

    Attributes:
        codes: shape of its codes, or of its elements.
        scales: shape of its scales.
        shape: ``(N, K)``.
        bits: see ``StreamWeight``, as for those that follow.
        block: weights that share a scale.
        lanes: bytes of a vector.
        ternary: whether all weights are known to be.
    """

    codes: tuple[int, ...]
    scales: tuple[int, ...]
    shape: tuple[int, int]
    bits: int = 0
    block: int = 0
    lanes: int = 0
    ternary: bool = False

    @classmethod
    def of(cls, matrix: Prepared) -> MatrixForm:
        """The form of a matrix.

        Raises:
            UnsupportedError: it is packed at 1.6 bits, which no expert is.
        """
        if isinstance(matrix, DenseWeight):
            return cls(matrix.values.shape, (0,), matrix.shape)
        if not isinstance(matrix, StreamWeight):
            raise UnsupportedError("the stand-in has no place for weights of 1.6 bits")
        return cls(
            matrix.codes.shape,
            matrix.scales.shape,
            matrix.shape,
            matrix.bits,
            matrix.block,
            matrix.lanes,
            matrix.ternary,
        )

    def sizes(self) -> list[int]:
        """Bytes of codes and of scales."""
        each = 1 if self.bits else 4
        return [each * int(np.prod(self.codes)), 4 * int(np.prod(self.scales))]

    @property
    def form(self) -> FloatForm | PackedForm:
        """The same, as the processor's kernels know it."""
        if not self.bits:
            return FloatForm(self.shape)
        stream = StreamForm(self.shape, self.bits, self.block, self.lanes, self.codes[1])
        return PackedForm(stream, row_scale=False)


class SlotForm(msgspec.Struct, frozen=True):
    """The matrices of an expert, one after the other, each array on a cache line."""

    matrices: tuple[MatrixForm, ...]

    @classmethod
    def of(cls, matrices: Sequence[Prepared]) -> SlotForm:
        """The form of an expert."""
        return cls(tuple(MatrixForm.of(matrix) for matrix in matrices))

    @property
    def nbytes(self) -> int:
        """Bytes of a slot."""
        return sum(_aligned(size) for form in self.matrices for size in form.sizes())

    def parts(self, slot: U8) -> list[U8]:
        """The memory of each array in a slot, uint8 ``[nbytes]``."""
        parts, at = [], 0
        for form in self.matrices:
            for size in form.sizes():
                parts.append(slot[at : at + size])
                at += _aligned(size)
        return parts

    @property
    def layout(self) -> SlotLayout:
        """The same, as the processor's kernels know it."""
        return SlotLayout([form.form for form in self.matrices])


def arrays_of(matrices: Sequence[Prepared]) -> list[U8]:
    """The arrays of an expert as bytes, in the order of ``SlotForm.parts``."""
    arrays: list[NDArray[Any]] = []
    for matrix in matrices:
        if isinstance(matrix, DenseWeight):
            arrays += [matrix.values, np.zeros(0, np.float32)]
        else:
            assert isinstance(matrix, StreamWeight)
            arrays += [matrix.codes, matrix.scales]
    return [array.reshape(-1).view(np.uint8) for array in arrays]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Regions(msgspec.Struct, frozen=True):
    """What lies where: slots, then rows that come in, then rows that go out.

    Attributes:
        form: of a slot.
        slots: how many.
        rows: that fit in each direction.
        width: elements of a row, both in and out.
    """

    form: SlotForm
    slots: int
    rows: int
    width: int

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return self.slots * self.form.nbytes + 2 * self.rows * self.width * 4

    def slot(self, memory: U8, slot: int) -> U8:
        """The memory of a slot."""
        nbytes = self.form.nbytes
        return memory[slot * nbytes : (slot + 1) * nbytes]

    def transfers(self, memory: U8) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Rows that come in and rows that go out, float32 ``[rows, width]``."""
        both = memory[self.slots * self.form.nbytes : self.nbytes].view(np.float32)
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
