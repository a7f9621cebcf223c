"""Checkpoints of latent attention, with keys and values of every head as tensors of their own.

They store the projections of what is not turned in keys and of values together, ``kv_b_proj``
``[heads * (plain + values), rank]``, and an output projection of value heads that may be narrower
than key heads. Here all heads have the same width; what there is nothing of is zeros.

Source: DeepSeek-V2 (2024), section 2.1.2, and its ``config.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun_export.checkpoint.base import F32, I8, Affine, Array, Checkpoint, Source, TensorInfo
from edgerun_export.checkpoint.stored import row_bounds

_STORED, _OUTPUT = "self_attn.kv_b_proj.weight", "self_attn.o_proj.weight"
_Kind: TypeAlias = Literal["keys", "values"]
_KINDS: Mapping[str, _Kind] = {
    "self_attn.k_proj.weight": "keys",
    "self_attn.v_proj.weight": "values",
}
_SIZES = ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_NOTHING = (0, 1, 0)  # code, scale and minimum of a zero
Rows: TypeAlias = NDArray[np.int64]
_Read: TypeAlias = Callable[[str, slice], tuple[Any, ...] | None]


@dataclass(frozen=True, slots=True)
class _Heads:
    """Sizes of heads, and where their rows are stored. Nothing was compared with a tensor yet.

    Attributes:
        count: of heads.
        plain: elements of a key that are not turned.
        turned: those that are.
        values: elements of a value.
    """

    count: int
    plain: int
    turned: int
    values: int

    @property
    def width(self) -> int:
        """Elements of every head here."""
        return max(self.plain + self.turned, self.values)

    def stored_rows(self, kind: _Kind, first: int, end: int) -> Rows:
        """The stored row of each row of all heads from ``first`` to ``end``; -1 for zeros."""
        head, place = np.divmod(np.arange(first, end), self.width)
        begin, size = (0, self.plain) if kind == "keys" else (self.plain, self.values)
        rows = head * (self.plain + self.values) + begin + place
        return np.where(place < size, rows, -1)


class LatentHeads:
    """A checkpoint with ``k_proj``, ``v_proj`` and a wide ``o_proj`` in all of its layers."""

    def __init__(self, checkpoint: Checkpoint, heads: _Heads) -> None:
        """Looks at the names and shapes of a checkpoint's tensors."""
        self.config: Mapping[str, Any] = checkpoint.config
        self.source: Source = checkpoint.source
        self._checkpoint, self._heads = checkpoint, heads
        self._others = dict(checkpoint.tensors())
        self._made: dict[str, TensorInfo] = {}
        self._rows: dict[str, tuple[str, _Kind]] = {}  # tensor that has them, and which they are
        self._rows_read: dict[str, int] = {}
        for name, info in checkpoint.tensors().items():
            self._add(name, info)

    def tensors(self) -> Mapping[str, TensorInfo]:
        """Describe every tensor; see ``Checkpoint.tensors``."""
        return self._others | self._made

    def read(self, name: str, rows: slice | None = None) -> Array:
        """Read rows as float32; see ``Checkpoint.read``."""
        if name not in self._made:
            return self._checkpoint.read(name, rows)
        first, end = self._bounds(name, rows)
        if name not in self._rows:
            return self._widened(self._checkpoint.read(name, slice(first, end)))
        stored, kind = self._rows[name]
        taken = _Taken(self._heads.stored_rows(kind, first, end))
        return taken.of(self._checkpoint.read(stored, taken.span))

    def integers(self, name: str, rows: slice | None = None) -> tuple[I8, F32] | None:
        """Read codes and scales, zeros of a scale of 1; see ``Checkpoint.integers``."""
        if name not in self._made:
            return self._checkpoint.integers(name, rows)
        parts = self._parts(name, rows, self._checkpoint.integers)
        return None if parts is None else (parts[0], parts[1])

    def affine(self, name: str, rows: slice | None = None) -> Affine | None:
        """Read codes, scales and minima; see ``Checkpoint.affine``."""
        if name not in self._made:
            return self._checkpoint.affine(name, rows)
        parts = self._parts(name, rows, self._checkpoint.affine)
        return None if parts is None else Affine(*parts)

    def ternary(self, name: str, rows: slice | None = None) -> tuple[I8, F32] | None:
        """Read stored ternary values, which no such layer has; see ``Checkpoint.ternary``."""
        return None if name in self._made else self._checkpoint.ternary(name, rows)

    def read_to_the_end(self) -> frozenset[str]:
        """Names of the tensors that were read; see ``Checkpoint.read_to_the_end``."""
        read = {name for name, end in self._rows_read.items() if end == self._made[name].shape[0]}
        return frozenset(read | (self._checkpoint.read_to_the_end() & self._others.keys()))

    def tokenizer_files(self) -> Mapping[str, bytes]:
        """Build the tokenizer's files; see ``Checkpoint.tokenizer_files``."""
        return self._checkpoint.tokenizer_files()

    def close(self) -> None:
        """Close every file."""
        self._checkpoint.close()

    def __enter__(self) -> LatentHeads:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, name: str, info: TensorInfo) -> None:
        """Takes a tensor that is stored otherwise; one of another shape stays, to be refused."""
        heads, module = self._heads, name.removesuffix(_STORED)
        both = heads.count * (heads.plain + heads.values)
        if name.endswith(_STORED) and len(info.shape) == 2 and info.shape[0] == both:
            del self._others[name]
            shape = heads.count * heads.width, info.shape[1]
            for own, kind in _KINDS.items():
                self._made[module + own] = TensorInfo(module + own, shape, info.dtype)
                self._rows[module + own] = name, kind
        if name.endswith(_OUTPUT) and info.shape[1:] == (heads.count * heads.values,):
            del self._others[name]
            self._made[name] = replace(info, shape=(info.shape[0], heads.count * heads.width))

    def _bounds(self, name: str, rows: slice | None) -> tuple[int, int]:
        first, end = row_bounds(rows, self._made[name].shape[0])
        self._rows_read[name] = max(end, self._rows_read.get(name, 0))
        return first, end

    def _parts(self, name: str, rows: slice | None, read: _Read) -> tuple[Any, ...] | None:
        """Codes, scales and minima; of zeros 0, 1 and 0. None where blocks go across heads."""
        first, end = self._bounds(name, rows)
        if name in self._rows:
            stored, kind = self._rows[name]
            taken = _Taken(self._heads.stored_rows(kind, first, end))
            parts = read(stored, taken.span)
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
    """A checkpoint with keys and values of every head, whether it stores them so or not."""
    config = checkpoint.config
    if config.get("kv_lora_rank") is None:
        return checkpoint
    sizes = [size for key in _SIZES if type(size := config.get(key)) is int and size > 0]
    if len(sizes) < len(_SIZES):
        return checkpoint  # to be refused by whoever reads the configuration
    return LatentHeads(checkpoint, _Heads(*sizes))
