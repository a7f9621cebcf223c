"""The weights of a checkpoint as the model computes with them, read in slabs of rows."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import CheckpointError
from edgerun_export.architectures import DecoderSpec
from edgerun_export.architectures.decoder.storage import HeadRows
from edgerun_export.checkpoint.base import Affine, Checkpoint, Integers
from edgerun_export.checkpoint.views.base import Parts, Read, read_in_runs
from edgerun_export.source.masters import absmean, round_by
from edgerun_export.source.rows import joined_rows, picked_rows
from edgerun_export.source.stored import (
    bare_norms,
    check_constant,
    from_stored,
    logical_shape,
    norm_factors,
    offset_norms,
    path_of,
)

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]

# Quantisers make several temporaries of a slab, so it is kept at 4 MB of float32.
_SLAB_WEIGHTS = 1 << 20
# Buffers that old versions of transformers stored although they follow from the configuration.
_DERIVED = re.compile(
    r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)"
    r"|model\.layers\.\d+\.self_attn\.masked_bias"
)
_HEADS = re.compile(r"\.(q|k|k_rope)_proj\.(weight|bias)$")
Whole = TypeVar("Whole", I8, Integers)


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
        self._aliases = {**spec.storage.names, **aliases}
        self._infos = checkpoint.tensors()
        self._shapes = spec.tensors()
        self._places = dict(joined_rows(spec))
        self._picked = dict(picked_rows(spec))
        self._bare = bare_norms(spec)
        self._offset = offset_norms(spec)
        self._norms_of = {
            "q": spec.q_norm or spec.q_row_norm,
            "k": spec.k_norm or spec.k_row_norm,
        }
        self._head_norms = tuple(f".{path}.weight" for path in self._norms_of.values() if path)
        self._ternary = self._ternary_names()
        self._master_scales: dict[str, np.float32] = {}
        self._groups: dict[str, int | None] = {}

    def check(self) -> None:
        """Compares the tensors with what the decoder needs.

        Raises:
            CheckpointError: one is missing, has another shape, or would be left out.
        """
        for name, expected in self._stored_shapes().items():
            info = self._infos.get(name)
            if info is None:
                raise CheckpointError(
                    f"the checkpoint has no tensor '{name}', which {self.spec.architecture} needs"
                )
            if logical_shape(info) != expected:
                raise CheckpointError(
                    f"tensor '{info.name}' has shape {list(info.shape)}; config.json asks for "
                    f"{list(expected)}"
                )
        for name in filter(self._is_constant, self._infos):
            check_constant(self._checkpoint.read(name), name, self.spec.storage)
        placeless = [each for each in self._without(self._needed()) if not self._is_idle(each)]
        if placeless:
            raise CheckpointError(
                f"tensor '{placeless[0]}'{_and_more(placeless)} has no place in the "
                f"{self.spec.architecture} that the configuration describes; leaving it out would "
                "change the model, so correct config.json or remove the tensor from the checkpoint"
            )

    def _is_idle(self, name: str) -> bool:
        """Whether a tensor is a bias of zeros, which AutoGPTQ stored for layers that have none."""
        is_bias = name.endswith(".bias") and len(self._infos[name].shape) == 1
        return is_bias and not self._checkpoint.read(name).any()

    def unread(self) -> list[str]:
        """Names of the tensors that were not read to the end, of those that carry weights."""
        rows = self.spec.storage.rows
        cut_off = {self._stored_name(name) for name in rows if rows[name] > self._shapes[name][0]}
        return self._without(self._checkpoint.read_to_the_end() | cut_off)

    def count(self) -> int:
        """Number of tensors in the checkpoint that carry weights of the decoder."""
        return len(self._without(()))

    def _without(self, names: Container[str]) -> list[str]:
        return sorted(
            name
            for name in self._infos
            if name not in names
            and _DERIVED.fullmatch(self.spec.storage.unplaced(name)) is None
            and not name.startswith(self.spec.storage.unused)
            and not self._is_constant(name)
        )

    def _is_constant(self, name: str) -> bool:
        return path_of(self.spec.storage.unplaced(name)) in self.spec.storage.constants

    def _stored_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors that the checkpoint should have."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in self._shapes.items():
            if name in self._bare:
                continue
            stored, first = self._place(name)
            rows = first + self.spec.storage.rows.get(name, shape[0])
            if name in self._picked:
                rows = max(int(self._picked[name].rows.max()) + 1, *shapes.get(stored, (0,))[:1])
            shapes[stored] = (rows, *shape[1:])
        return shapes

    def _needed(self) -> set[str]:
        needed = {self._stored_name(each) for each in self._shapes if each not in self._bare}
        ternary = {self._stored_name(name) for name in self._ternary}
        scales = {f"{name}_scale" for name in ternary if self._infos[name].dtype == "U8"}
        # A tied head that is stored as well has been compared with the embedding.
        return needed | scales | ({self.spec.storage.head} if self.spec.tied else set())

    def _stored_name(self, name: str) -> str:
        return self._place(name)[0]

    def _place(self, name: str) -> tuple[str, int]:
        """The tensor of the checkpoint that has the rows of a name, and the first of them."""
        own = self._aliases.get(name, name)
        if name in self._picked:
            own = self._picked[name].path
        path, first = self._places.get(name, (own, 0))
        return self.spec.storage.placed(path), first

    def natively_ternary(self) -> bool:
        """Whether every projection has ternary values of its own."""
        return all(self.is_ternary(name) for name in self._projection_names())

    def stores_ternary(self) -> bool:
        """Whether the file itself holds every projection as ternary values."""
        return all(
            self._checkpoint.ternary(self._stored_name(name), slice(0, 1)) is not None
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
        """Reads a bias or a norm's weight, float32 ``[n]``.

        Raises:
            CheckpointError: one is stored as its logarithm, and float32 is too narrow for it.
        """
        if name in self._bare:
            return np.ones(self.shape(name), np.float32)
        values = self._floats(name, slice(None))
        values = from_stored(values, name, self._stored_name(name), self.spec.storage)
        if name in self._offset:
            values = values + np.float32(self.spec.storage.norm_offset)
        factors = self._row_factors(name, slice(None))
        return values if factors is None else values * factors[:, 0]

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
        plain, factors = self._floats(name, rows), self._row_factors(name, rows)
        return plain if factors is None else plain * factors

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
        return self._scaled(name, rows, self._stored_ternary(name, rows))

    def _stored_ternary(self, name: str, rows: slice) -> tuple[I8, F32]:
        stored = self._in_order(name, rows, self._checkpoint_ternary)
        if stored is not None:
            return stored
        if self.spec.ternary == "packed":
            raise CheckpointError(
                f"config.json says that ternary weights are stored packed, but tensor '{name}' "
                f"has type {self.stored_type(name)}"
            )
        if name not in self._master_scales:
            slabs = (self._floats(name, part) for part in self.slabs(name))
            self._master_scales[name] = absmean(slabs)
        return round_by(self._floats(name, rows), self._master_scales[name])

    def _checkpoint_ternary(self, stored_name: str, rows: slice) -> tuple[I8, F32] | None:
        stored = self._checkpoint.ternary(stored_name, rows)
        if stored is None:
            return None
        values, scales = stored
        return values, np.broadcast_to(scales.reshape(-1, scales.shape[-1]), _grid(stored))

    def integers(self, name: str, rows: slice) -> tuple[Integers, F32] | None:
        """Reads rows of a matrix that the source stores, or computes with, as integers and scales.

        Returns:
            values int8, or int16, ``[rows, columns]`` and scales float32 ``[rows, g]``, one for
            each ``columns / g`` values; ``None`` where there is nothing but floats.
        """
        if self.is_ternary(name):
            return self.ternary(name, rows)
        stored = self._in_order(name, rows, self._checkpoint.integers)
        return None if stored is None else self._scaled(name, rows, stored)

    def groups(self, name: str) -> int | None:
        """Groups of inputs with a scale of their own, of a matrix that is integers and scales.

        None where ``integers`` is. Reading a row of a packed matrix may take reading all of it, so
        that is done once.
        """
        if name not in self._groups:
            stored = self.integers(name, slice(0, 1))
            self._groups[name] = None if stored is None else stored[1].shape[1]
        return self._groups[name]

    def affine(self, name: str, rows: slice) -> Affine | None:
        """Reads rows of a matrix that the source stores as integers, scales and minima, or None."""
        stored = self._in_order(name, rows, self._checkpoint.affine)
        factors = self._row_factors(name, rows)
        if stored is None or factors is None:
            return stored and Affine(*stored)
        values, scales, offsets = stored
        return Affine(values, scales * factors, offsets * factors)

    def _scaled(self, name: str, rows: slice, stored: tuple[Whole, F32]) -> tuple[Whole, F32]:
        values, scales = stored
        factors = self._row_factors(name, rows)
        return values, scales if factors is None else scales * factors

    def _row_factors(self, name: str, rows: slice) -> F32 | None:
        """What rows of a matrix are multiplied by, ``[rows, 1]`` or one; None for nothing."""
        storage = self.spec.storage
        if name in storage.factors:
            factor = storage.factors[name]
            own = factor[rows] if isinstance(factor, tuple) else [factor]
            return np.array(own, np.float32)[:, None]
        if name in storage.normalised:
            return norm_factors(self._floats(name, rows), storage.normalised[name])
        head_rows = self._head_rows(name)
        if head_rows is None or not self._takes_head_factors(name):
            return None
        numbers = np.arange(*rows.indices(self.shape(name)[0]))
        return head_rows.factors[numbers % self.spec.head_dim][:, None]

    def _head_rows(self, name: str) -> HeadRows | None:
        """How the heads of a tensor are stored; None for as they are, or for one of no heads."""
        if not _HEADS.search(name) and not name.endswith(self._head_norms):
            return None
        storage = self.spec.storage
        return storage.own_head_rows.get(int(name.split(".")[2]), storage.head_rows)

    def _takes_head_factors(self, name: str) -> bool:
        """Whether factors of head rows, which are the rope's, concern a tensor of heads.

        Where heads are normalised they concern norms alone, which would undo those of the rows
        before, and where nothing is turned none.
        """
        match = _HEADS.search(name)
        is_turned = self.spec.rope_of(int(name.split(".")[2])) is not None
        return is_turned and (match is None or self._norms_of.get(match[1]) is None)

    def _floats(self, name: str, rows: slice) -> F32:
        def read(stored: str, part: slice) -> tuple[F32]:
            return (self._checkpoint.read(stored, part).astype(np.float32, copy=False),)

        values = self._in_order(name, rows, read)
        assert values is not None
        return values[0]

    def _in_order(self, name: str, rows: slice, read: Read[Parts]) -> Parts | None:
        """Reads rows of a tensor in the order in which the model computes with them."""
        stored, offset = self._place(name)
        first, end, _ = rows.indices(self.shape(name)[0])
        there = self.spec.storage.rows.get(name, end)
        if end > there:
            return self._like_the_first(name, slice(first, there), end - max(first, there), read)
        turned = self._head_rows(name)
        if name in self._picked:
            numbers = np.arange(first, end)
            if turned is not None:
                size = self.spec.head_dim
                numbers = numbers // size * size + turned.order[numbers % size]
            return read_in_runs(stored, self._picked[name].rows[numbers], read)
        if turned is None:
            return read(stored, slice(offset + first, offset + end))
        size = self.spec.head_dim
        start, stop = first // size * size, -(-end // size) * size
        parts = read(stored, slice(offset + start, offset + stop))
        if parts is None:
            return None
        numbers = np.arange(first, end)
        order = numbers // size * size + turned.order[numbers % size] - start
        return cast(Parts, tuple(part[order] for part in parts))

    def _like_the_first(self, name: str, rows: slice, more: int, read: Read[Parts]) -> Parts | None:
        """Reads rows that are there, which may be none, and so many times the first of all."""
        parts = self._in_order(name, slice(0, 1), read)
        own = self._in_order(name, rows, read) if rows.start < rows.stop else None
        if parts is None:
            return None
        repeated = [np.repeat(part, more, axis=0) for part in parts]
        if own is not None:
            repeated = [np.concatenate(pair) for pair in zip(own, repeated, strict=True)]
        return cast(Parts, tuple(repeated))

    def _projection_names(self) -> list[str]:
        return [
            f"model.layers.{layer}.{linear.path}.weight"
            for layer in range(self.spec.num_layers)
            for linear in self.spec.projections(layer)
        ]

    def _ternary_names(self) -> frozenset[str]:
        names = [n for n in self._projection_names() if self._stored_name(n) in self._infos]
        if self.spec.ternary is not None:
            return frozenset(names)
        return frozenset(
            name
            for name in names
            if self._checkpoint.ternary(self._stored_name(name), slice(0, 1)) is not None
        )


def _grid(stored: tuple[I8, F32]) -> tuple[int, int]:
    values, scales = stored
    return len(values), scales.shape[-1]


def _and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
