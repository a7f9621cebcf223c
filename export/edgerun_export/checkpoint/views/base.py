"""What all views have: the checkpoint behind them, which ends with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from edgerun_export.checkpoint.base import Checkpoint, Source

_Self = TypeVar("_Self", bound="View")


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
