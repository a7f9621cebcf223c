"""What processors may know of the texts of tokens."""

from __future__ import annotations

from typing import Protocol


class Vocabulary(Protocol):
    """Texts of tokens, below the packages that have a tokenizer.

    Attributes:
        vocab_size: number of ids.
        eos_ids: ids that end a reply.
        hidden_ids: ids that give no text.
    """

    vocab_size: int
    eos_ids: tuple[int, ...]
    hidden_ids: frozenset[int]

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids of tokens that structure a prompt and are no text."""

    def token_bytes(self, id_: int) -> bytes:
        """The UTF-8 bytes that an id stands for; none where it stands for nothing."""
