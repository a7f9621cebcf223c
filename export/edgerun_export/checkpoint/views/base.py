"""What all views have: the checkpoint behind them, which ends with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from edgerun_export.checkpoint.base import F32, I8, Affine, Checkpoint, Source, TensorInfo
from edgerun_export.checkpoint.stored import row_bounds

_Self = TypeVar("_Self", bound="View")
Parts = TypeVar("Parts", bound=tuple[NDArray[Any], ...])
# Reads rows of a stored tensor: values, or codes with what belongs to them; None if it has none.
Read = Callable[[str, slice], Parts | None]


class View:
    """The part of a ``Checkpoint`` that a view leaves as it is.

    Attributes:
        config: keys of config.json.
        source: where the checkpoint came from.
        notes: sentences about what was left out knowingly.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Takes what lies behind."""
        self.config: Mapping[str, Any] = checkpoint.config
        self.source: Source = checkpoint.source
        self.notes: tuple[str, ...] = checkpoint.notes
        self._checkpoint = checkpoint

    def tokenizer_files(self) -> Mapping[str, bytes]:
        """Build the tokenizer's files; see ``Checkpoint.tokenizer_files``."""
        return self._checkpoint.tokenizer_files()

    def digest(self) -> str:
        """SHA-256 of configuration and weights; see ``Checkpoint.digest``."""
        return self._checkpoint.digest()

    def close(self) -> None:
        """Close every file."""
        self._checkpoint.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Replacing(View):
    """A view with tensors of its own in the place of others.

    Subclasses take what they replace from ``_others``, and describe what they have in ``_own``.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Takes what lies behind, all of it as it is."""
        super().__init__(checkpoint)
        self._stored = checkpoint.tensors()
        self._others = dict(self._stored)
        self._own: dict[str, TensorInfo] = {}
        self._rows_read: dict[str, int] = {}

    def tensors(self) -> Mapping[str, TensorInfo]:
        """Describe every tensor; see ``Checkpoint.tensors``."""
        return self._others | self._own

    def affine(self, name: str, rows: slice | None = None) -> Affine | None:
        """Read codes, scales and minima, which none has by itself; see ``Checkpoint.affine``."""
        return None if name in self._own else self._checkpoint.affine(name, rows)

    def ternary(self, name: str, rows: slice | None = None) -> tuple[I8, F32] | None:
        """Read stored ternary values, which none has; see ``Checkpoint.ternary``."""
        return None if name in self._own else self._checkpoint.ternary(name, rows)

    def read_to_the_end(self) -> frozenset[str]:
        """Names of the tensors that were read; see ``Checkpoint.read_to_the_end``."""
        read = {name for name, end in self._rows_read.items() if end == self._own[name].shape[0]}
        return frozenset(read | (self._checkpoint.read_to_the_end() & self._others.keys()))

    def _bounds(self, name: str, rows: slice | None) -> tuple[int, int]:
        """First row and end of those that are asked for, which count as read."""
        first, end = row_bounds(rows, self._own[name].shape[0])
        self._rows_read[name] = max(end, self._rows_read.get(name, 0))
        return first, end


def read_in_runs(
    stored: str, rows: NDArray[np.int64], read: Read[Parts], ends: Sequence[int] = ()
) -> Parts | None:
    """Reads rows of any order, those together that lie together.

    Args:
        stored: name of the tensor.
        rows: their numbers, one or more.
        read: reads some that lie together.
        ends: numbers before which a run ends.
    """
    begins = (np.diff(rows) != 1) | np.isin(rows[1:], list(ends))
    runs = np.split(rows, np.flatnonzero(begins) + 1)
    parts = [read(stored, slice(int(run[0]), int(run[-1]) + 1)) for run in runs]
    if any(part is None for part in parts):
        return None
    pieces = zip(*(part for part in parts if part is not None), strict=True)
    return cast(Parts, tuple(np.concatenate(each) for each in pieces))
