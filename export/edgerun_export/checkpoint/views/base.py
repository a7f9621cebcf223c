"""What all views have: the checkpoint behind them, which ends with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from edgerun_export.checkpoint.base import Checkpoint, Source

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
