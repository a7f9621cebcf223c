"""How everything that belongs to one expert lies in memory: a slot.

All slots of a layer have the same arrays at the same places, so that kernels need no more than the
address of a slot (``kernels/run/dispatch.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.buffers import ALIGNMENT, dense_shape
from edgerun.backends.cpu.weights import (
    FLOAT_LANES,
    DenseWeight,
    Prepared,
    fill_dense,
    has_row_scales,
)
from edgerun.errors import BundleError
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import Matrix
from edgerun.graph.constants import check_finite
from edgerun.graph.mapped_file import ArrayReader, read_array
from edgerun.kernels.lang.isa import Isa
from edgerun.kernels.layouts.stream import DWORD, StreamForm, StreamWeight

Arrays: TypeAlias = Mapping[str, NDArray[Any]]  # by the kernel's argument
Sizes: TypeAlias = Mapping[str, tuple[tuple[int, ...], str]]  # shapes and types of such


class Form(Protocol):
    """How a matrix or vector of an expert is prepared."""

    @property
    def sizes(self) -> Sizes:
        """What it takes."""

    def fill(self, matrix: Matrix, arrays: Arrays, reader: ArrayReader, *, alone: bool) -> None:
        """Prepares it in memory, whatever was there before.

        Args:
            matrix: of this form, or a vector.
            arrays: the memory.
            reader: brings what lies in a mapped file into memory.
            alone: no other threads are to help.

        Raises:
            BackendError: the file has become shorter.
            BundleError: a scale or an element is infinite or no number, or scales are not equal
                along each row where they have to be.
        """


class MatrixForm(Form, Protocol):
    """How a matrix of an expert is prepared."""

    def view(self, arrays: Arrays) -> Prepared:
        """What kernels see of it."""


@dataclass(frozen=True, slots=True)
class PackedForm:
    """A low-bit matrix in the stream layout."""

    stream: StreamForm
    row_scale: bool

    @property
    def sizes(self) -> Sizes:
        stream = self.stream
        return {"codes": (stream.codes_shape, "uint8"), "scales": (stream.scales_shape, "float32")}

    def view(self, arrays: Arrays) -> Prepared:
        return self.stream.weight(arrays["codes"], arrays["scales"])

    def fill(self, matrix: Matrix, arrays: Arrays, reader: ArrayReader, *, alone: bool) -> None:
        assert isinstance(matrix, PackedWeight)
        zeros = None if matrix.zeros is None else read_array(matrix.zeros)
        packed = replace(matrix, scales=reader.read(matrix.scales), zeros=zeros)
        if self.row_scale and not has_row_scales(packed):
            raise BundleError(
                f"weight '{packed.format} {packed.shape}' of an expert has several scales in a row "
                "where the first expert has one: load this model without a limit to the memory of "
                "experts"
            )
        content = self.stream.fill(
            packed, arrays["codes"], arrays["scales"], reader.read, alone=alone
        )
        if not content.is_finite:
            check_finite(f"{packed.format} {packed.shape}", "scales", packed.scales)


@dataclass(frozen=True, slots=True)
class FloatForm:
    """A float32 matrix."""

    shape: tuple[int, int]

    @property
    def sizes(self) -> Sizes:
        return {"codes": (dense_shape(self.shape), "float32")}

    def view(self, arrays: Arrays) -> Prepared:
        return DenseWeight(arrays["codes"], self.shape)

    def fill(self, matrix: Matrix, arrays: Arrays, reader: ArrayReader, *, alone: bool) -> None:
        assert not isinstance(matrix, PackedWeight)
        fill_dense(matrix, arrays["codes"])


@dataclass(frozen=True, slots=True)
class BiasForm:
    """A float32 vector of some length."""

    length: int

    @property
    def sizes(self) -> Sizes:
        return {"bias": ((self.length,), "float32")}

    def fill(self, matrix: Matrix, arrays: Arrays, reader: ArrayReader, *, alone: bool) -> None:
        assert not isinstance(matrix, PackedWeight)
        arrays["bias"][...] = reader.read(matrix)
        check_finite(f"float32 {self.length}", "elements", arrays["bias"])


def form_of(
    matrix: Matrix, activations: str, isa: Isa, *, row_scale: bool, halves: bool
) -> MatrixForm:
    """How the kernels for some kind of activations read matrices like this one."""
    if not isinstance(matrix, PackedWeight):
        return FloatForm((matrix.shape[0], matrix.shape[1]))
    lanes = FLOAT_LANES if activations == "float" else isa.vector_bytes
    stream = StreamForm.of(matrix, lanes, row_scale=row_scale, halves=halves)
    return PackedForm(stream, row_scale)


@dataclass(frozen=True, slots=True)
class Projection:
    """One matrix of an expert, and its bias if it has one, in a slot.

    Attributes:
        weight: what kernels see of the matrix.
        arrays: its memory, by the kernel's argument.
        offsets: of that in the slot, in bytes.
    """

    weight: Prepared
    arrays: Arrays
    offsets: Mapping[str, int]


def rows_of(projection: Projection, first: int, last: int) -> Projection:
    """Some of a low-bit matrix's rows, in panels of them, and of its bias.

    Args:
        projection: in the stream layout.
        first: panel to begin with.
        last: panel before which to end.
    """
    weight = projection.weight
    assert isinstance(weight, StreamWeight)
    height = weight.lanes // DWORD
    start, end = first * height, min(last * height, weight.shape[0])
    slices = {"codes": slice(first, last), "scales": slice(first, last), "bias": slice(start, end)}
    arrays = {name: array[slices[name]] for name, array in projection.arrays.items()}
    offsets = {
        name: offset + slices[name].start * projection.arrays[name].strides[0]
        for name, offset in projection.offsets.items()
    }
    shape = end - start, weight.shape[1]
    part = replace(weight, codes=arrays["codes"], scales=arrays["scales"], shape=shape)
    return Projection(part, arrays, offsets)


class SlotLayout:
    """Where the arrays of an expert lie in a slot.

    Attributes:
        matrices: what they are.
        biases: of each matrix, or nothing.
        nbytes: of a slot, a multiple of ``ALIGNMENT``.
    """

    def __init__(
        self,
        matrices: Sequence[MatrixForm],
        biases: Sequence[BiasForm | None] = (),
        *,
        gate_is_up: bool = False,
    ) -> None:
        """Puts arrays one after the other, each on a cache line; biases come last.

        ``gate_is_up`` says that the first two matrices are the same, and lie at one place.
        """
        self.matrices = tuple(matrices)
        self.biases = tuple(biases) or (None,) * len(matrices)
        self._forms: list[Form] = [*matrices, *(bias for bias in biases if bias is not None)]
        self._offsets: list[dict[str, int]] = []
        self.nbytes = 0
        for number, form in enumerate(self._forms):
            if gate_is_up and number == 1:
                self._offsets.append(self._offsets[0])
                continue
            places = {}
            for name, (shape, dtype) in form.sizes.items():
                places[name] = self.nbytes
                size = int(np.prod(shape)) * np.dtype(dtype).itemsize
                self.nbytes += -(-size // ALIGNMENT) * ALIGNMENT
            self._offsets.append(places)

    def projections(self, slot: NDArray[np.uint8]) -> tuple[Projection, ...]:
        """The matrices of the expert that lies in a slot, uint8 ``[nbytes]`` or more."""
        count = len(self.matrices)
        pairs = list(zip(self._arrays(slot), self._offsets, strict=True))
        biases, projections = iter(pairs[count:]), []
        for form, bias, (arrays, offsets) in zip(
            self.matrices, self.biases, pairs[:count], strict=True
        ):
            of_bias = ({}, {}) if bias is None else next(biases)
            view = form.view(arrays)
            projections.append(
                Projection(view, {**arrays, **of_bias[0]}, {**offsets, **of_bias[1]})
            )
        return tuple(projections)

    def fill(
        self,
        slot: NDArray[np.uint8],
        matrices: Sequence[Matrix],
        reader: ArrayReader,
        *,
        alone: bool = False,
    ) -> None:
        """Prepares an expert's matrices, then its biases, in a slot; see ``Form.fill``."""
        for form, matrix, arrays in zip(self._forms, matrices, self._arrays(slot), strict=True):
            form.fill(matrix, arrays, reader, alone=alone)

    def packed_forms(self) -> list[tuple[PackedForm, Mapping[str, int]]] | None:
        """The matrices and where they lie in a slot, if rearranging them is all there is to do."""
        pairs = zip(self._forms, self._offsets, strict=True)
        packed: list[tuple[PackedForm, Mapping[str, int]]] = [
            (form, offsets)
            for form, offsets in pairs
            if isinstance(form, PackedForm) and not form.row_scale
        ]
        return packed if len(packed) == len(self._forms) else None

    def _arrays(self, slot: NDArray[np.uint8]) -> list[dict[str, NDArray[Any]]]:
        return [
            {
                name: _view(slot, places[name], shape, dtype)
                for name, (shape, dtype) in form.sizes.items()
            }
            for form, places in zip(self._forms, self._offsets, strict=True)
        ]


def _view(memory: NDArray[np.uint8], at: int, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """An array that begins at a byte of some memory, which takes a third of the time of slicing."""
    return np.ndarray(shape, dtype, memory.data, at)
