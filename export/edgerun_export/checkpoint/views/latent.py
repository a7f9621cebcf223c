"""Checkpoints of latent attention, with keys and values of every head as tensors of their own.

They store the projections of what is not turned in keys and of values together, ``kv_b_proj``
``[heads * (plain + values), rank]``, what these read and the turned part of all keys together,
``kv_a_proj_with_mqa`` ``[rank + turned, hidden]``, and an output projection of value heads that may
be narrower than key heads. Newer GGUF files have the first two apart, ``k_b_proj`` ``[heads, rank,
plain]`` and ``v_b_proj`` ``[heads, values, rank]``. Here all heads have the same width, that of the
turned part, ``k_rope_proj``, as well; what there is nothing of is zeros.

Sources: DeepSeek-V2 (2024), section 2.1.2, and its ``config.json``; llama.cpp's converter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import CheckpointError
from edgerun_export.checkpoint.base import (
    F32,
    Affine,
    Array,
    Checkpoint,
    Integers,
    TensorInfo,
)
from edgerun_export.checkpoint.views.base import Replacing

_ROW, _OUTPUT = "self_attn.kv_a_proj_with_mqa.weight", "self_attn.o_proj.weight"
_BOTH, _OF_KEYS, _OF_VALUES = (f"self_attn.{name}_b_proj.weight" for name in ("kv", "k", "v"))
_KEYS, _VALUES = "self_attn.k_proj.weight", "self_attn.v_proj.weight"
_LATENT, _TURNED = "self_attn.kv_a_proj.weight", "self_attn.k_rope_proj.weight"
_SIZES = (
    "kv_lora_rank",
    "num_attention_heads",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)
_NOTHING = (0, 1, 0)  # code, scale and minimum of a zero
Rows: TypeAlias = NDArray[np.int64]
_Read: TypeAlias = Callable[[str, slice], tuple[Any, ...] | None]


@dataclass(frozen=True, slots=True)
class _Heads:
    """Sizes as ``config.json`` has them, which may be any.

    Attributes:
        rank: elements of the row that keys and values are made of.
        count: of heads.
        plain: elements of a key that are not turned.
        turned: those that are.
        values: elements of a value.
    """

    rank: int
    count: int
    plain: int
    turned: int
    values: int

    @property
    def width(self) -> int:
        """Elements of every head here."""
        return max(self.plain + self.turned, self.values)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where rows of heads are stored.

    Attributes:
        stored: name of the tensor.
        size: rows of a head.
        begin: the first of them among the rows of a head there.
        apart: rows of a head there; 0 where the tensor has an axis of heads.
        lead: zeros before them.
        is_turned: whether rows of a head are columns there.
    """

    stored: str
    size: int
    begin: int = 0
    apart: int = 0
    lead: int = 0
    is_turned: bool = False

    def places(self, first: int, end: int, width: int) -> Rows:
        """The stored row of each row from ``first`` to ``end``; -1 for zeros."""
        head, place = np.divmod(np.arange(first, end), width)
        place -= self.lead
        is_stored = (place >= 0) & (place < self.size)
        return np.where(is_stored, head * self.apart + self.begin + place, -1)


class LatentHeads(Replacing):
    """A checkpoint with ``k_proj``, ``v_proj`` and a wide ``o_proj`` in all of its layers."""

    def __init__(self, checkpoint: Checkpoint, heads: _Heads) -> None:
        """Looks at the names and shapes of a checkpoint's tensors.

        Raises:
            CheckpointError: there is none of the heads, or one of another shape.
        """
        super().__init__(checkpoint)
        self._heads = heads
        self._rows: dict[str, _Rows] = {}
        for name, info in self._stored.items():
            self._add(name, info)
        for name in self._stored:
            self._check_parts(name)

    def read(self, name: str, rows: slice | None = None) -> Array:
        """Read rows as float32; see ``Checkpoint.read``."""
        if name not in self._own:
            return self._checkpoint.read(name, rows)
        first, end = self._bounds(name, rows)
        if name not in self._rows:
            return self._widened(self._checkpoint.read(name, slice(first, end)))
        rows_of = self._rows[name]
        if not rows_of.apart:
            return self._of_single_heads(rows_of, first, end)
        taken = _Taken(rows_of.places(first, end, self._width(name)))
        return taken.of(self._checkpoint.read(rows_of.stored, taken.span))

    def integers(self, name: str, rows: slice | None = None) -> tuple[Integers, F32] | None:
        """Read codes and scales, zeros of a scale of 1; see ``Checkpoint.integers``."""
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

    def _add(self, name: str, info: TensorInfo) -> None:
        """Takes a tensor that is stored otherwise."""
        heads = self._heads
        rank, count, plain, values = heads.rank, heads.count, heads.plain, heads.values
        if name.endswith(_ROW):
            both, hidden = rank + heads.turned, (*info.shape, 0, 0)[1]
            self._expect(info, (both, hidden))
            self._make(info, _ROW, _LATENT, _Rows(name, rank, 0, both), (rank, hidden))
            turned = _Rows(name, heads.turned, rank, both, plain)
            self._make(info, _ROW, _TURNED, turned, (heads.width, hidden))
        elif name.endswith(_OUTPUT):
            self._expect(info, (*info.shape[:1], count * values))
            shape = info.shape[0], count * heads.width
            self._own[name] = replace(self._others.pop(name), shape=shape)
        shape = count * heads.width, rank
        if name.endswith(_BOTH):
            self._expect(info, (count * (plain + values), rank))
            self._make(info, _BOTH, _KEYS, _Rows(name, plain, 0, plain + values), shape)
            self._make(info, _BOTH, _VALUES, _Rows(name, values, plain, plain + values), shape)
        elif name.endswith(_OF_KEYS):
            self._expect(info, (count, rank, plain))
            self._make(info, _OF_KEYS, _KEYS, _Rows(name, plain, is_turned=True), shape)
        elif name.endswith(_OF_VALUES):
            self._expect(info, (count, values, rank))
            self._make(info, _OF_VALUES, _VALUES, _Rows(name, values), shape)

    def _make(
        self, info: TensorInfo, stored: str, own: str, rows: _Rows, shape: tuple[int, int]
    ) -> None:
        name = info.name.removesuffix(stored) + own
        if name in self._own or name in self._others:
            raise CheckpointError(f"tensor '{name}' is there twice, once in '{info.name}'")
        self._others.pop(info.name, None)
        self._own[name], self._rows[name] = TensorInfo(name, shape, info.dtype), rows

    def _expect(self, info: TensorInfo, shape: tuple[int, ...]) -> None:
        if info.shape != shape:
            raise CheckpointError(
                f"tensor '{info.name}' has shape {list(info.shape)}; config.json asks for "
                f"{list(shape)}"
            )

    def _check_parts(self, name: str) -> None:
        """Whether there is something of the heads of a layer that has a row for them."""
        module = name.removesuffix(_ROW)
        if module != name and not self._own.keys() >= {module + _KEYS, module + _VALUES}:
            raise CheckpointError(
                f"the checkpoint has '{name}' and no '{module}{_BOTH}', of which keys and values "
                "are made"
            )

    def _of_single_heads(self, rows: _Rows, first: int, end: int) -> Array:
        """Rows of a tensor that has an axis of heads, ``[end - first, rank]``."""
        width = self._heads.width
        head = first // width
        stored = self._checkpoint.read(rows.stored, slice(head, -(-end // width)))
        heads = stored.transpose(0, 2, 1) if rows.is_turned else stored
        wide = np.pad(heads, ((0, 0), (0, width - rows.size), (0, 0)))
        return wide.reshape(-1, wide.shape[2])[first - head * width : end - head * width]

    def _width(self, name: str) -> int:
        """Rows of a head of a tensor, or all of them."""
        return self._heads.rank if name.endswith(_LATENT) else self._heads.width

    def _parts(self, name: str, rows: slice | None, read: _Read) -> tuple[Any, ...] | None:
        """Codes, scales and minima; of zeros 0, 1 and 0.

        None of tensors that have an axis of heads, and where blocks go across heads.
        """
        first, end = self._bounds(name, rows)
        if name in self._rows:
            rows_of = self._rows[name]
            if not rows_of.apart:
                return None
            taken = _Taken(rows_of.places(first, end, self._width(name)))
            parts = read(rows_of.stored, taken.span)
            return parts and tuple(map(taken.of, parts, _NOTHING))
        parts = read(name, slice(first, end))
        if parts is None:
            return None
        block = parts[0].shape[1] // parts[1].shape[1]
        if self._heads.values % block or self._heads.width % block:
            return None
        widths = (1, block, block)
        return tuple(map(self._widened, parts, widths, _NOTHING))

    def _widened(self, columns: Array, block: int = 1, fill: float = 0) -> Array:
        """Columns of all value heads, with as many more as key heads have.

        Args:
            columns: ``[rows, heads * values / block]``.
            block: how many elements a column stands for.
            fill: what the others hold.
        """
        heads = columns.reshape(len(columns), self._heads.count, -1)
        more = (self._heads.width - self._heads.values) // block
        wide = np.pad(heads, ((0, 0), (0, 0), (0, more)), constant_values=fill)
        return wide.reshape(len(columns), -1)


class _Taken:
    """Some rows of a stored tensor, -1 for none, and the span that has them all."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._is_stored = rows, rows >= 0
        stored = rows[self._is_stored]
        first, last = (int(stored.min()), int(stored.max())) if len(stored) else (0, 0)
        self.span = slice(first, last + 1)

    def of(self, block: Array, fill: float = 0) -> Array:
        """The rows, from what was read of the span."""
        taken = np.full((len(self._rows), block.shape[1]), fill, block.dtype)
        taken[self._is_stored] = block[self._rows[self._is_stored] - self.span.start]
        return taken


def with_single_heads(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint with keys and values of every head, whether it stores them so or not.

    Raises:
        CheckpointError: a tensor is not what ``config.json`` says; the checkpoint is closed then.
    """
    text = checkpoint.config.get("text_config")  # of a checkpoint with parts for pictures
    config = text if isinstance(text, Mapping) else checkpoint.config
    if config.get("kv_lora_rank") is None:
        return checkpoint
    sizes = [size for key in _SIZES if type(size := config.get(key)) is int and size > 0]
    if len(sizes) < len(_SIZES):
        return checkpoint  # to be refused by whoever reads the configuration
    try:
        return LatentHeads(checkpoint, _Heads(*sizes))
    except CheckpointError:
        checkpoint.close()
        raise
