"""Linear attention of GGUF files, as Hugging Face has it.

llama.cpp has ``-exp(A_log)`` and, of Qwen3-Next, queries, keys and values apart from their gates,
which Hugging Face has in turns, key head by key head. Of Qwen3.5 it has value heads in another
order, the first of each key head before the second of each, in all that belongs to a head: rows of
projections, of the convolution and of vectors, and columns of the output projection.

Source: llama.cpp's ``conversion/qwen.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import CheckpointError
from edgerun_export.checkpoint.base import F32, I8, Affine, Array, Checkpoint, TensorInfo
from edgerun_export.checkpoint.kinds.linear import MODEL_TYPES, RATE
from edgerun_export.checkpoint.views.base import Replacing, read_in_runs

_QKVZ, _QKV, _Z = (f"linear_attn.in_proj_{name}.weight" for name in ("qkvz", "qkv", "z"))
_A_LOG, _OUT = "linear_attn.A_log", "linear_attn.out_proj.weight"
Numbers: TypeAlias = NDArray[np.int64]
_Read: TypeAlias = Callable[[str, slice], tuple[Any, ...] | None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Heads of linear attention, and their elements."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def shared(self) -> int:
        """Value heads of a key head."""
        return self.value_heads // self.key_heads

    def values(self, dim: int, first: int = 0) -> Numbers:
        """The stored row of every row of value heads, ``dim`` each, behind ``first`` others."""
        heads = np.arange(self.value_heads)
        stored = heads % self.shared * self.key_heads + heads // self.shared
        rows = stored[:, None] * dim + np.arange(dim)
        return np.concatenate([np.arange(first), first + rows.ravel()])

    def in_turns(self) -> Numbers:
        """Of each key head the rows of query, key, values and gates, which are stored apart."""
        keys, own = self.key_heads * self.key_dim, self.shared * self.value_dim
        heads = np.arange(self.key_heads)[:, None]
        parts, begin = [], 0
        for size, whole in ((self.key_dim, keys), (self.key_dim, keys), (own, 0), (own, 0)):
            parts.append(begin + heads * size + np.arange(size))
            begin += whole or self.value_heads * self.value_dim
        return np.concatenate(parts, axis=1).ravel()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor lies.

    Attributes:
        stored: tensors that have its rows, one behind the other.
        rows: int64, of each row its place in them.
        columns: int64, likewise of columns; None for as they are.
    """

    stored: tuple[str, ...]
    rows: Numbers
    columns: Numbers | None = None


class LinearHeads(Replacing):
    """A checkpoint with heads of linear attention in the order of Hugging Face."""

    def __init__(self, checkpoint: Checkpoint, sizes: Sizes, *, are_tiled: bool) -> None:
        """Looks at the names and shapes of a checkpoint's tensors."""
        super().__init__(checkpoint)
        self._places: dict[str, _Place] = {}
        for name, info in self._stored.items():
            if not info.shape:
                continue
            if name.endswith(RATE):
                order = sizes.values(1) if are_tiled else np.arange(sizes.value_heads)
                self._make(name.removesuffix(RATE) + _A_LOG, (name,), order, info.shape)
            elif are_tiled:
                self._untile(name, info, sizes)
            elif name.endswith(_QKV):
                module = name.removesuffix(_QKV)
                gates = self._stored.get(module + _Z)
                if gates is not None and gates.shape:
                    shape = (info.shape[0] + gates.shape[0], *info.shape[1:])
                    self._make(module + _QKVZ, (name, gates.name), sizes.in_turns(), shape)

    def read(self, name: str, rows: slice | None = None) -> Array:
        """Read rows as float32; see ``Checkpoint.read``."""
        if name not in self._own:
            return self._checkpoint.read(name, rows)
        parts = self._parts(name, rows, lambda each, part: (self._checkpoint.read(each, part),))
        assert parts is not None
        values: Array = parts[0]
        if not name.endswith(_A_LOG):
            return values
        if not (values < 0).all():
            raise CheckpointError(
                f"tensor '{self._places[name].stored[0]}' holds {values.max():g}; expected numbers "
                "below 0, by which matrices decay, so it is damaged"
            )
        return np.log(-values)

    def integers(self, name: str, rows: slice | None = None) -> tuple[I8, F32] | None:
        """Read codes and scales; see ``Checkpoint.integers``."""
        if name not in self._own:
            return self._checkpoint.integers(name, rows)
        parts = self._parts(name, rows, self._checkpoint.integers)
        return None if parts is None else (parts[0], parts[1])

    def affine(self, name: str, rows: slice | None = None) -> Affine | None:
        """Read codes, scales and minima; see ``Checkpoint.affine``."""
        if name not in self._own:
            return self._checkpoint.affine(name, rows)
        parts = self._parts(name, rows, self._checkpoint.affine)
        return None if parts is None else Affine(*parts)

    def _untile(self, name: str, info: TensorInfo, sizes: Sizes) -> None:
        if sizes.shared == 1:
            return
        queries = 2 * sizes.key_heads * sizes.key_dim
        rows = {
            _QKV: (sizes.value_dim, queries),
            _Z: (sizes.value_dim, 0),
            "linear_attn.in_proj_a.weight": (1, 0),
            "linear_attn.in_proj_b.weight": (1, 0),
            "linear_attn.dt_bias": (1, 0),
            "linear_attn.conv1d.weight": (sizes.value_dim, queries),
        }
        for end, (dim, first) in rows.items():
            if name.endswith(f".{end}"):
                self._make(name, (name,), sizes.values(dim, first), info.shape)
        if name.endswith(f".{_OUT}"):
            rows_there, columns = np.arange(info.shape[0]), sizes.values(sizes.value_dim)
            self._make(name, (name,), rows_there, info.shape, columns)

    def _make(
        self,
        name: str,
        stored: tuple[str, ...],
        rows: Numbers,
        shape: tuple[int, ...],
        columns: Numbers | None = None,
    ) -> None:
        """Takes a tensor in place of others; whoever reads it compares its shape first."""
        for each in stored:
            self._others.pop(each, None)
        self._own[name] = replace(self._stored[stored[0]], name=name, shape=shape)
        self._places[name] = _Place(stored, rows, columns)

    def _parts(self, name: str, rows: slice | None, read: _Read) -> tuple[Any, ...] | None:
        place, (first, end) = self._places[name], self._bounds(name, rows)
        before = self._stored[place.stored[0]].shape[0]

        def read_stored(_: str, part: slice) -> tuple[Any, ...] | None:
            if part.start < before:
                return read(place.stored[0], part)
            return read(place.stored[1], slice(part.start - before, part.stop - before))

        ends = [before] if len(place.stored) > 1 else []
        parts = read_in_runs("", place.rows[first:end], read_stored, ends)
        if parts is None or place.columns is None:
            return parts
        return _in_columns(parts, place.columns)


def _in_columns(parts: tuple[Any, ...], columns: Numbers) -> tuple[Any, ...] | None:
    """Values, and what belongs to blocks of them, in another order; None if blocks are cut."""
    ordered = []
    for part in parts:
        block = len(columns) // part.shape[1]
        starts = columns[::block]
        whole = columns.reshape(-1, block) == starts[:, None] + np.arange(block)
        if part.shape[1] == 1:
            ordered.append(part)  # one scale for all
        elif not whole.all() or (starts % block).any():
            return None
        else:
            ordered.append(part[:, starts // block])
    return tuple(ordered)


def with_linear_heads(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint of a GGUF file with linear attention as Hugging Face has it, if it has any."""
    config = checkpoint.config
    if config.get("model_type") not in MODEL_TYPES:
        return checkpoint
    names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    sizes = Sizes(*(config[f"linear_{name}"] for name in names))
    if sizes.value_heads % sizes.key_heads:
        return checkpoint  # to be refused by whoever reads the configuration
    return LinearHeads(checkpoint, sizes, are_tiled=config["model_type"] != MODEL_TYPES[0])
