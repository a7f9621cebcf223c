"""Turns the bundle's constants into what the kernels stream, once for all phases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.buffers import aligned_zeros, dense_shape
from edgerun.backends.cpu.regroup import regrouped
from edgerun.formats.base import PackedWeight, has_half_scales
from edgerun.formats.stack import Matrix
from edgerun.graph.constants import check_finite, check_many_scales
from edgerun.graph.mapped_file import ArrayReader, read_array
from edgerun.kernels.lang.isa import Isa
from edgerun.kernels.layouts.stream import Arena, StreamWeight, to_stream
from edgerun.kernels.layouts.trits import OneMatrix, TritWeight, to_trits

DENSE_LANES = 8
LOOKED_AT_ELEMENTS = 1 << 20  # they stay in the caches
FLOAT_LANES = 32


@dataclass(frozen=True, slots=True)
class DenseWeight:
    """float32 ``[N, padded K]``, padding zero."""

    values: NDArray[np.float32]
    shape: tuple[int, int]

    @property
    def nbytes(self) -> int:
        """Bytes that one pass over the matrix reads."""
        return self.values.nbytes


Prepared: TypeAlias = StreamWeight | TritWeight | DenseWeight


class WeightStore:
    """Prepared weights by identity of the constant and the way it is used."""

    def __init__(self, isa: Isa, *, trits: bool = False) -> None:
        """Prepares weights for one instruction set; ``trits`` packs ternary ones tighter."""
        self._isa = isa
        self._trits = trits
        self._codes = OneMatrix()  # on the way to trits
        self._arena = Arena()
        self._reader, self._scales = ArrayReader(), ArrayReader()
        self._prepared: dict[tuple[int, str, bool], tuple[Matrix, Prepared]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all prepared weights."""
        return sum(prepared.nbytes for _, prepared in self._prepared.values())

    def prepare(self, constant: Matrix, activations: str, *, regroup: bool = False) -> Prepared:
        """Returns the constant in the layout that its kernel reads, or what it is regrouped to.

        Raises:
            BackendError: the file that it lies in has become shorter.
            BundleError: a scale or an element is infinite or no number.
        """
        key = (id(constant), activations, regroup)
        if key not in self._prepared:
            self._prepared[key] = (constant, self._make(constant, activations, regroup))
        return self._prepared[key][1]

    def rest(self) -> None:
        """Gives back the memory that is needed only while weights are prepared."""
        self._reader.clear()
        self._scales.clear()

    def _make(self, constant: Matrix, activations: str, regroup: bool) -> Prepared:
        if not isinstance(constant, PackedWeight):
            values = aligned_zeros(dense_shape(constant.shape), "float32")
            fill_dense(constant, values)
            return DenseWeight(values, (constant.shape[0], constant.shape[1]))
        zeros = None if constant.zeros is None else read_array(constant.zeros)
        offsets = None if constant.offsets is None else read_array(constant.offsets)
        scales = self._scales.read(constant.scales).astype(np.float32, copy=False)
        constant = replace(constant, scales=scales, zeros=zeros, offsets=offsets)
        check_many_scales(constant)
        if regroup:
            constant = regrouped(constant)
        if activations == "int8_row" and has_row_scales(constant):
            return self._with_row_scales(constant)
        lanes = FLOAT_LANES if activations == "float" else self._isa.vector_bytes
        return to_stream(
            constant,
            lanes,
            row_scale=False,
            halves=activations != "float" and has_half_scales(constant),
            arena=self._arena,
            read=self._reader.read,
        )

    def _with_row_scales(self, constant: PackedWeight) -> Prepared:
        lanes, read = self._isa.vector_bytes, self._reader.read
        if self._trits and constant.bits == 2:
            codes = to_stream(constant, lanes, row_scale=True, arena=self._codes, read=read)
            if codes.ternary:
                return to_trits(codes, self._arena)
        return to_stream(constant, lanes, row_scale=True, arena=self._arena, read=read)


def has_row_scales(weight: PackedWeight) -> bool:
    """Whether all blocks of a row share one scale, and all of all rows the middle zero point."""
    return weight.is_centred and bool((weight.scales == weight.scales[:, :1]).all())


def fill_dense(matrix: NDArray[Any], values: NDArray[np.float32]) -> None:
    """Copies a matrix, some rows at a time so that they are looked at while they are at hand.

    Args:
        matrix: float32 ``[N, K]``.
        values: of ``dense_shape``, of which every element is written.

    Raises:
        BackendError: the file that the matrix lies in has become shorter.
        BundleError: an element is infinite or no number.
    """
    n, k = matrix.shape
    values[:, k:] = 0
    step = max(1, LOOKED_AT_ELEMENTS // values.shape[1])
    # The rows of a turned matrix lie all over the file.
    source = matrix if matrix.flags.c_contiguous else read_array(matrix)
    reader = ArrayReader()
    for start in range(0, n, step):
        rows = values[start : start + step]
        rows[:, :k] = reader.read(source[start : start + step])
        check_finite(f"float32 {n} x {k}", "elements", rows)
