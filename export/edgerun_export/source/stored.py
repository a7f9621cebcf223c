"""Vectors that are stored otherwise than a model computes with them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import CheckpointError
from edgerun_export.architectures import DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage
from edgerun_export.checkpoint.base import TensorInfo

F32 = NDArray[np.float32]
_PACKED_ROWS = 4  # logical rows in a stored row of transformers' packed ternary tensors
_ROUNDED = 2.0**-8  # how far a number may be from what it is in bfloat16, of itself


def path_of(name: str) -> str:
    """The path of a tensor below ``model.layers.N``; empty for one of no layer."""
    return name.partition(".layers.")[2].partition(".")[2]


def bare_norms(spec: DecoderSpec) -> frozenset[str]:
    """Names of the weights of norms that are not stored."""
    return frozenset(name for name in _norms(spec) if _ends_so(name, spec.storage.bare_norms))


def offset_norms(spec: DecoderSpec) -> frozenset[str]:
    """Names of the weights of norms that are stored less a number."""
    plain = spec.storage.plain_norms
    offset = (name for name in _norms(spec) if not _ends_so(name, plain))
    return frozenset(offset if spec.storage.norm_offset else ())


def _norms(spec: DecoderSpec) -> Iterator[str]:
    yield spec.final_norm_weight
    for layer in range(spec.num_layers):
        yield from (f"model.layers.{layer}.{path}.weight" for path in spec.norms(layer))


def _ends_so(name: str, ends: tuple[str, ...]) -> bool:
    return name.removesuffix(".weight").endswith(ends)


def from_stored(values: F32, name: str, stored_name: str, storage: Storage) -> F32:
    """What the model computes with where a vector has ``values``.

    Args:
        values: as they are stored.
        name: what the decoder calls it.
        stored_name: what the checkpoint calls it.
        storage: what is stored how.

    Raises:
        CheckpointError: it is stored as its logarithm, and float32 is too narrow for it.
    """
    path = path_of(name)
    if path in storage.softplus:
        wide = values.astype(np.float64)
        return np.asarray(np.logaddexp(0, wide) + storage.softplus[path], np.float32)
    if path not in storage.logarithms:
        return values
    with np.errstate(over="ignore"):  # reported below
        exponential = np.exp(values)
    if not np.isfinite(exponential).all():
        raise CheckpointError(
            f"tensor '{stored_name}' holds {values.max():g}, whose exponential is beyond float32; "
            "the checkpoint is damaged: download it again"
        )
    return -exponential


def norm_factors(rows: F32, epsilon: float) -> F32:
    """What a norm without a weight multiplies rows ``[n, K]`` by, ``[n, 1]``."""
    mean = np.mean(rows * rows, axis=1, keepdims=True, dtype=np.float32)
    return np.asarray(1 / np.sqrt(mean + np.float32(epsilon)), np.float32)


def check_constant(values: F32, name: str, storage: Storage) -> None:
    """Compares a tensor that is the same in all checkpoints with what it should be.

    Raises:
        CheckpointError: it is another, which would change the model.
    """
    expected = storage.constants[path_of(name)]
    value = values.item() if values.size == 1 else f"{values.size} numbers"
    if values.size != 1 or not np.isclose(value, expected, rtol=_ROUNDED, atol=0):
        raise CheckpointError(
            f"tensor '{name}' holds {value} where {expected:g} was expected, the only value that "
            "is supported"
        )


def logical_shape(info: TensorInfo) -> tuple[int, ...]:
    """The shape of the matrix that a stored tensor stands for."""
    if info.dtype == "U8" and len(info.shape) == 2:
        return (info.shape[0] * _PACKED_ROWS, info.shape[1])
    return info.shape
