"""Tensors whose rows are those of others, in an order of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import CheckpointError
from edgerun_export.checkpoint.base import F32, I8, Affine, Array
from edgerun_export.checkpoint.views.base import Replacing, read_in_runs

Numbers: TypeAlias = NDArray[np.int64]
_Read: TypeAlias = Callable[[str, slice], tuple[Any, ...] | None]
A_LOG = ".A_log"  # logarithms of what GGUF files have the negatives of


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


class PickedTensors(Replacing):
    """A view with tensors that are made of rows of one or two others.

    Subclasses call ``_pick`` for each of them. One that is called ``A_log`` is the logarithm of the
    negative of what is stored.
    """

    _places: dict[str, _Place]

    def read(self, name: str, rows: slice | None = None) -> Array:
        """Read rows as float32; see ``Checkpoint.read``."""
        if name not in self._own:
            return self._checkpoint.read(name, rows)
        parts = self._parts(name, rows, lambda each, part: (self._checkpoint.read(each, part),))
        assert parts is not None
        values: Array = parts[0]
        if not name.endswith(A_LOG):
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

    def _pick(
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
