"""What a constant of a lowered graph must be, so that kernels may trust its size and content."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import BundleError
from edgerun.formats import format_named
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import ExpertStack, Matrix
from edgerun.graph.ir import Constant
from edgerun.graph.mapped_file import ArrayReader, read_array
from edgerun.graph.shapes import ALTERED
from edgerun.ops.base import Kind, Operand

DIMENSIONS = {Kind.VECTOR: 1, Kind.MATRIX: 2}
SMALLEST_BLOCK = 16  # what MatMulNBits allows
FEW_BYTES = 1 << 16  # of scales
PAGE_BYTES = 4096  # the least that is read of a file
PIECE = 1 << 22  # elements looked at together


def check_constant(name: str, constant: Constant, operand: Operand) -> None:
    """Checks type, dimensions and content of a constant, of a stack those of all its matrices.

    Raises:
        BundleError: it is not what the operand must be.
        UnsupportedError: no such weight format.
    """
    if not isinstance(constant, ExpertStack):
        if operand.kind is Kind.STACK:
            raise BundleError(f"constant '{name}' is one matrix; expected one of each expert")
        return _check_array(name, constant, operand)
    if operand.kind is not Kind.STACK:
        kind_name = operand.kind.value
        raise BundleError(f"constant '{name}' is a stack of matrices; expected a {kind_name}")
    kind = Kind.MATRIX if len(operand.sizes) > 2 else Kind.VECTOR
    alone, first = replace(operand, kind=kind), constant.matrices[0]
    layout, count = _layout(first), len(constant.matrices)
    contents = not _are_many(_read_bytes(first), count)
    for expert, matrix in enumerate(constant.matrices):
        is_alike = _layout(matrix) == layout
        if not is_alike or contents or matrix is first:
            _check_array(f"{name}[{expert}]", matrix, alone, count)
        if not is_alike:
            raise BundleError(
                f"'{name}' is {_description(matrix)} of expert {expert} and {_description(first)} "
                f"of expert 0; expected the same of all: {ALTERED}"
            )


def _layout(matrix: Matrix) -> tuple[Any, ...]:
    """What the matrices of a stack have in common: all that is checked of them but contents."""
    if not isinstance(matrix, PackedWeight):
        return matrix.dtype, matrix.shape
    arrays: list[NDArray[Any]] = [matrix.codes, matrix.scales]
    arrays += [each for each in (matrix.zeros, matrix.offsets) if each is not None]
    stored = [(array.dtype, array.shape, array.flags.c_contiguous) for array in arrays]
    return matrix.format, matrix.shape, matrix.block, *stored


def _description(matrix: Matrix) -> str:
    """Size and format in words."""
    size = " x ".join(map(str, matrix.shape))
    if not isinstance(matrix, PackedWeight):
        return f"float32 {size}"
    extra = "" if matrix.is_centred else " with zero points"
    return f"{matrix.format} {size} in blocks of {matrix.block}{extra}"


def _check_array(name: str, constant: Matrix, operand: Operand, count: int = 1) -> None:
    """Checks type, dimensions and content of a constant.

    Contents are looked at as far as that is cheap: the numbers of vectors, and scales that are
    few; in a stack of ``count`` matrices they lie apart and are soon many. Many scales, and the
    elements of float32 matrices, are left to whoever prepares them and has to read them anyway
    (``check_many_scales``, ``check_finite``).

    Raises:
        BundleError: it is not what the operand must be.
        UnsupportedError: no such weight format.
    """
    if isinstance(constant, PackedWeight):
        if operand.kind is not Kind.MATRIX:
            raise BundleError(f"constant '{name}' is a packed matrix; expected a float32 vector")
        _check_packed(name, constant)
        if not _are_many(constant.scale_bytes, count):
            _check_scales(name, constant)
        return
    dimensions = DIMENSIONS[operand.kind]
    if constant.dtype != np.float32 or constant.ndim != dimensions or not constant.size:
        raise BundleError(
            f"constant '{name}' is {_describe(constant)}; expected float32 with {dimensions} "
            f"dimension{'s' * (dimensions > 1)}"
        )
    if operand.kind is Kind.VECTOR and not _are_many(constant.nbytes, count):
        check_finite(name, "elements", constant)
        largest = float(np.abs(constant).max())
        if largest > operand.limit:
            raise BundleError(
                f"constant '{name}' reaches {largest:g}; expected at most {operand.limit:g} of "
                f"{operand.name}: {ALTERED}"
            )


def check_many_scales(weight: PackedWeight, count: int = 1) -> None:
    """Checks the scales that ``check_constant`` has left out, of one of ``count`` in a stack.

    Raises:
        BundleError: one is infinite or no number, or no half where there are offsets.
    """
    if _are_many(weight.scale_bytes, count):
        _check_scales(f"{weight.format} {weight.shape}", weight)


def _check_scales(name: str, weight: PackedWeight) -> None:
    """Checks that scales are finite, and with offsets that those are, too, and both are halves.

    Raises:
        BundleError: one is not.
    """
    check_finite(name, "scales", weight.scales)
    if weight.offsets is None:
        return
    check_finite(name, "offsets", read_array(weight.offsets).astype(np.float32))
    scales = read_array(weight.scales)
    with np.errstate(over="ignore"):
        halves = scales.astype(np.float16)
    if (halves != scales).any():
        raise BundleError(
            f"constant '{name}' has scales that half precision does not hold; with offsets both "
            f"are float16: {ALTERED}"
        )


def _read_bytes(matrix: Matrix) -> int:
    """Bytes that are read to check the contents of a matrix or vector."""
    return matrix.scale_bytes if isinstance(matrix, PackedWeight) else matrix.nbytes


def _are_many(nbytes: int, count: int) -> bool:
    """Whether it takes long to read so many scales or vectors of a size, which lie apart."""
    return count * (nbytes if count == 1 else max(nbytes, PAGE_BYTES)) > FEW_BYTES


def check_finite(name: str, part: str, array: NDArray[np.float32]) -> None:
    """Checks that no element is infinite or NaN.

    Raises:
        BundleError: one is.
    """
    flat, reader = array.reshape(-1), ArrayReader()
    starts = range(0, flat.size, PIECE)
    pieces = (reader.read(flat[start : start + PIECE]) for start in starts)
    # A sum is finite only if all elements are, and takes no memory; it may overflow without.
    with np.errstate(all="ignore"):
        finite = all(math.isfinite(piece.sum()) or np.isfinite(piece).all() for piece in pieces)
    if not finite:
        raise BundleError(
            f"constant '{name}' has {part} that are infinite or no numbers: the model is damaged"
        )


def _check_packed(name: str, weight: PackedWeight) -> None:
    """Checks that codes, scales, zero points and offsets have the sizes that the weight states."""
    n, k = weight.shape
    block = weight.block
    if n < 1 or k < 1 or block < SMALLEST_BLOCK or block & (block - 1):
        raise BundleError(
            f"weight '{name}' has shape {weight.shape} and blocks of {block}; expected a power of "
            f"two from {SMALLEST_BLOCK} on"
        )
    bits, blocks = format_named(weight.format).bits, weight.blocks
    parts: list[tuple[str, NDArray[Any], type[np.generic], tuple[int, ...]]] = [
        ("codes", weight.codes, np.uint8, (n, blocks, block * bits // 8)),
        ("scales", weight.scales, np.float32, (n, blocks)),
    ]
    if weight.zeros is not None:
        parts.append(("zero points", weight.zeros, np.uint8, (n, -(-blocks * bits // 8))))
    if weight.offsets is not None:
        parts.append(("offsets", weight.offsets, np.float16, (blocks, n)))
    for part, array, dtype, shape in parts:
        if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
            raise BundleError(
                f"the {part} of weight '{name}' are {_describe(array)}; {weight.format} in blocks "
                f"of {block} needs {np.dtype(dtype)} {shape} for a matrix {weight.shape}"
            )


def _describe(array: NDArray[np.generic]) -> str:
    return f"{array.dtype} {array.shape}"
