"""Turns the bundle's constants into what the kernels stream, once for all phases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.buffers import ROW_MULTIPLE, aligned_zeros
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import ExpertStack, Matrix
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
        self._prepared: dict[tuple[int, str], tuple[Matrix, Prepared]] = {}
        self._stacks: dict[tuple[int, str], tuple[ExpertStack, tuple[Prepared, ...]]] = {}
        self._vectors: dict[int, tuple[ExpertStack, NDArray[np.float32]]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all prepared weights."""
        stacks = (each for _, stack in self._stacks.values() for each in stack)
        single = (prepared for _, prepared in self._prepared.values())
        return sum(prepared.nbytes for prepared in chain(single, stacks))

    def prepare(self, constant: Matrix, activations: str) -> Prepared:
        """Returns the constant in the layout that its kernel reads.

        Raises:
            BackendError: the file that it lies in has become shorter.
            BundleError: a scale or an element is infinite or no number.
        """
        key = (id(constant), activations)
        if key not in self._prepared:
            self._prepared[key] = (constant, self._make(constant, activations, trits=self._trits))
        return self._prepared[key][1]

    def prepare_stack(self, stack: ExpertStack, activations: str) -> tuple[Prepared, ...]:
        """Returns the matrices of a stack, all of them in the same layout.

        Raises:
            BackendError: the file that they lie in has become shorter.
            BundleError: a scale or an element is infinite or no number.
        """
        key = (id(stack), activations)
        if key not in self._stacks:
            by_row = activations == "int8_row" and all(map(self._has_row_scales, stack.matrices))
            made = (
                self._make(
                    matrix, activations, by_row=by_row, trits=False, count=len(stack.matrices)
                )
                for matrix in stack.matrices
            )
            self._stacks[key] = (stack, tuple(made))
        return self._stacks[key][1]

    def prepare_vectors(self, stack: ExpertStack) -> NDArray[np.float32]:
        """Returns a stack of vectors as float32 ``[experts, N]``.

        Raises:
            BackendError: the file that they lie in has become shorter.
            BundleError: an element is infinite or no number.
        """
        if id(stack) not in self._vectors:
            experts = range(len(stack.matrices))
            vectors = np.stack([read_array(stack.vector(expert)) for expert in experts])
            check_finite(f"float32 {vectors.shape}", "elements", vectors)
            self._vectors[id(stack)] = stack, vectors
        return self._vectors[id(stack)][1]

    def rest(self) -> None:
        """Gives back the memory that is needed only while weights are prepared."""
        self._reader.clear()
        self._scales.clear()

    def _has_row_scales(self, matrix: Matrix) -> bool:
        return not isinstance(matrix, PackedWeight) or has_row_scales(
            replace(matrix, scales=self._scales.read(matrix.scales))
        )

    def _make(
        self,
        constant: Matrix,
        activations: str,
        *,
        by_row: bool = True,
        trits: bool,
        count: int = 1,
    ) -> Prepared:
        if not isinstance(constant, PackedWeight):
            return _dense(constant)
        constant = replace(constant, scales=self._scales.read(constant.scales))
        check_many_scales(constant, count)
        if activations == "int8_row" and by_row and has_row_scales(constant):
            return self._with_row_scales(constant, trits)
        lanes = FLOAT_LANES if activations == "float" else self._isa.vector_bytes
        return to_stream(
            constant, lanes, row_scale=False, arena=self._arena, read=self._reader.read
        )

    def _with_row_scales(self, constant: PackedWeight, trits: bool) -> Prepared:
        lanes, read = self._isa.vector_bytes, self._reader.read
        if trits and constant.bits == 2:
            codes = to_stream(constant, lanes, row_scale=True, arena=self._codes, read=read)
            if codes.ternary:
                return to_trits(codes, self._arena)
        return to_stream(constant, lanes, row_scale=True, arena=self._arena, read=read)


def has_row_scales(weight: PackedWeight) -> bool:
    """Whether all blocks of a row share one scale."""
    return bool((weight.scales == weight.scales[:, :1]).all())


def _dense(matrix: NDArray[Any]) -> DenseWeight:
    """Copies a matrix, some rows at a time so that they are looked at while they are at hand.

    Raises:
        BundleError: an element is infinite or no number.
    """
    n, k = matrix.shape
    values = aligned_zeros((n, -(-k // ROW_MULTIPLE) * ROW_MULTIPLE), "float32")
    step = max(1, LOOKED_AT_ELEMENTS // values.shape[1])
    # The rows of a turned matrix lie all over the file.
    source = matrix if matrix.flags.c_contiguous else read_array(matrix)
    reader = ArrayReader()
    for start in range(0, n, step):
        rows = values[start : start + step]
        rows[:, :k] = reader.read(source[start : start + step])
        check_finite(f"float32 {n} x {k}", "elements", rows)
    return DenseWeight(values, (n, k))
