"""The weights of a checkpoint as the model computes with them, read in slabs of rows."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import CheckpointError
from edgerun_export.architectures import DecoderSpec
from edgerun_export.architectures.spec import HEAD_WEIGHT
from edgerun_export.checkpoint.base import Checkpoint, TensorInfo

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]

# Quantisers make several temporaries of a slab, so it is kept at 4 MB of float32.
_SLAB_WEIGHTS = 1 << 20
# Buffers that old versions of transformers stored although they follow from the configuration.
_DERIVED = re.compile(
    r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)"
    r"|model\.layers\.\d+\.self_attn\.masked_bias"
)
_PACKED_ROWS = 4  # logical rows in a stored row of transformers' packed ternary tensors


class SourceWeights:
    """Reads tensors of a checkpoint, ternary ones with the values the model was trained to use.

    Attributes:
        spec: the decoder they belong to.

    Args:
        checkpoint: the source.
        spec: the decoder that its configuration describes.
        aliases: names under which tensors are stored, where it is not their own.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        spec: DecoderSpec,
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.spec = spec
        self._checkpoint = checkpoint
        self._aliases = aliases
        self._infos = checkpoint.tensors()
        self._shapes = spec.tensors()
        self._ternary = self._ternary_names()
        self._master_scales: dict[str, np.float32] = {}

    def check(self) -> None:
        """Compares the tensors with what the decoder needs.

        Raises:
            CheckpointError: one is missing, has another shape, or would be left out.
        """
        for name, expected in self._shapes.items():
            info = self._infos.get(self._stored_name(name))
            if info is None:
                raise CheckpointError(
                    f"the checkpoint has no tensor '{name}', which {self.spec.architecture} needs"
                )
            if _logical_shape(info) != expected:
                raise CheckpointError(
                    f"tensor '{info.name}' has shape {list(info.shape)}; config.json asks for "
                    f"{list(expected)}"
                )
        placeless = self._without(self._needed())
        if placeless:
            raise CheckpointError(
                f"tensor '{placeless[0]}'{_and_more(placeless)} has no place in the "
                f"{self.spec.architecture} that the configuration describes; leaving it out would "
                "change the model, so correct config.json or remove the tensor from the checkpoint"
            )

    def unread(self) -> list[str]:
        """Names of the tensors, other than derived buffers, that were not read to the end."""
        return self._without(self._checkpoint.read_to_the_end())

    def count(self) -> int:
        """Number of tensors in the checkpoint that carry weights."""
        return len(self._without(()))

    def _without(self, names: Container[str]) -> list[str]:
        return sorted(
            name for name in self._infos if name not in names and _DERIVED.fullmatch(name) is None
        )

    def _needed(self) -> set[str]:
        needed = {self._stored_name(name) for name in self._shapes}
        scales = {f"{name}_scale" for name in self._ternary if self._infos[name].dtype == "U8"}
        # A tied head that is stored as well has been compared with the embedding.
        return needed | scales | ({HEAD_WEIGHT} if self.spec.tied else set())

    def _stored_name(self, name: str) -> str:
        return self._aliases.get(name, name)

    def natively_ternary(self) -> bool:
        """Whether every projection has ternary values of its own."""
        return all(self.is_ternary(name) for name in self._projection_names())

    def stores_ternary(self) -> bool:
        """Whether the file itself holds every projection as ternary values."""
        return all(
            self._checkpoint.ternary(name, slice(0, 1)) is not None
            for name in self._projection_names()
        )

    def is_ternary(self, name: str) -> bool:
        """Whether a tensor has ternary values of its own."""
        return name in self._ternary

    def head_name(self) -> str:
        """Name of the tensor that the head multiplies by."""
        return self.spec.head_weight

    def stored_type(self, name: str) -> str:
        """The type in which a tensor is stored: ``F32``, ``Q4_0``, ..."""
        return self._infos[self._stored_name(name)].dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor as the model computes with it."""
        return self._shapes[name]

    def vector(self, name: str) -> F32:
        """Reads a bias or a norm's weight, float32 ``[n]``."""
        return self._checkpoint.read(self._stored_name(name)).astype(np.float32, copy=False)

    def slabs(self, name: str) -> Iterator[slice]:
        """Yields the row ranges in which to read a matrix."""
        rows, columns = self.shape(name)
        step = max(1, _SLAB_WEIGHTS // columns)
        for start in range(0, rows, step):
            yield slice(start, min(start + step, rows))

    def rows(self, name: str, rows: slice) -> F32:
        """Reads rows of a matrix, float32 ``[rows, columns]``."""
        if self.is_ternary(name):
            values, scales = self.ternary(name, rows)
            wide = np.repeat(scales, values.shape[1] // scales.shape[1], axis=1)
            return values.astype(np.float32) * wide
        return self._checkpoint.read(self._stored_name(name), rows).astype(np.float32, copy=False)

    def matrix(self, name: str) -> F32:
        """Reads a whole matrix, float32 ``[rows, columns]``, with no second copy of it."""
        out = np.empty(self.shape(name), np.float32)
        for rows in self.slabs(name):
            out[rows] = self.rows(name, rows)
        return out

    def ternary(self, name: str, rows: slice) -> tuple[I8, F32]:
        """Reads rows of a natively ternary matrix.

        Returns:
            values -1, 0, 1 ``[rows, columns]`` and scales float32 ``[rows, g]``, one for each
            ``columns / g`` values.
        """
        stored = self._checkpoint.ternary(name, rows)
        if stored is not None:
            values, scales = stored
            return values, np.broadcast_to(scales.reshape(-1, scales.shape[-1]), _grid(stored))
        if self.spec.ternary == "packed":
            raise CheckpointError(
                f"config.json says that ternary weights are stored packed, but tensor '{name}' "
                f"has type {self._infos[name].dtype}"
            )
        return self._quantise_master(name, rows)

    def integers(self, name: str, rows: slice) -> tuple[I8, F32] | None:
        """Reads rows of a matrix that the source stores, or computes with, as integers and scales.

        Returns:
            values int8 ``[rows, columns]`` and scales float32 ``[rows, g]``, one for each
            ``columns / g`` values; ``None`` where there is nothing but floats.
        """
        if self.is_ternary(name):
            return self.ternary(name, rows)
        return self._checkpoint.integers(self._stored_name(name), rows)

    def _quantise_master(self, name: str, rows: slice) -> tuple[I8, F32]:
        """Applies absmean (Ma et al. 2024, equations 1 to 3), as transformers' ``WeightQuant``."""
        if name not in self._master_scales:
            total = sum(
                float(np.abs(self._checkpoint.read(name, part)).sum(dtype=np.float64))
                for part in self.slabs(name)
            )
            shape = self.shape(name)
            mean = np.float32(total / (shape[0] * shape[1]))
            self._master_scales[name] = np.float32(1) / np.maximum(mean, np.float32(1e-5))
        inverse = self._master_scales[name]
        weights = self._checkpoint.read(name, rows).astype(np.float32, copy=False)
        values = np.clip(np.rint(weights * inverse), -1, 1).astype(np.int8)
        return values, np.full((len(values), 1), np.float32(1) / inverse, np.float32)

    def _projection_names(self) -> list[str]:
        return [
            f"model.layers.{layer}.{linear.path}.weight"
            for layer in range(self.spec.num_layers)
            for linear in self.spec.projections(layer)
        ]

    def _ternary_names(self) -> frozenset[str]:
        names = [name for name in self._projection_names() if name in self._infos]
        if self.spec.ternary is not None:
            return frozenset(names)
        return frozenset(
            name for name in names if self._checkpoint.ternary(name, slice(0, 1)) is not None
        )


def _grid(stored: tuple[I8, F32]) -> tuple[int, int]:
    values, scales = stored
    return len(values), scales.shape[-1]


def _and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _logical_shape(info: TensorInfo) -> tuple[int, ...]:
    if info.dtype == "U8" and len(info.shape) == 2:
        return (info.shape[0] * _PACKED_ROWS, info.shape[1])
    return info.shape
