"""What a store consists of: one part for each kind of state, all for the same slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgerun.state.prefixes import Key
from edgerun.state.spec import State
from edgerun.state.store import Block, Slot


class Part(Protocol):
    """The states of some layers, for every slot.

    A part knows pages and arrays; lengths, owners, versions and keys are the store's, which passes
    what a method needs. ``keys`` are the keys of a sequence's full pages, where its ids are known.

    Attributes:
        states: what the layers declare.
    """

    @property
    def states(self) -> Sequence[State]: ...

    def copied(self) -> Part:
        """A part with the same content, to be read and written."""

    def reachable(self, slot: Slot, length: int, current: int, keys: Sequence[Key]) -> int:
        """The longest length up to ``length`` that a slot of ``current`` tokens can go back to."""

    def cut(self, slot: Slot, length: int, current: int, keys: Sequence[Key]) -> None:
        """Goes back to a length that is reachable."""

    def share(
        self, source: Slot, slot: Slot, length: int, current: int, keys: Sequence[Key]
    ) -> None:
        """Lets an empty slot begin with the first ``length`` tokens of another, as if cut there."""

    def findable(self, keys: Sequence[Key], length: int) -> int:
        """The longest prefix of up to ``length`` tokens that is stored under keys of its pages."""

    def adopt(self, slot: Slot, length: int, keys: Sequence[Key]) -> None:
        """Lets an empty slot begin with a prefix that is findable."""

    def reserve(self, slot: Slot, current: int, length: int) -> None:
        """Makes room for tokens from ``current`` up to ``length``.

        Raises:
            Full: there is none.
        """

    def commit(self, slot: Slot, length: int) -> None:
        """The slot has ``length`` tokens now."""

    def checkpoint(self, slot: Slot, length: int) -> None:
        """Remembers the state after ``length`` tokens, which are all that there are."""

    def name(self, slot: Slot, page: int, key: Key) -> None:
        """Lets a page of the slot be found by its key."""

    def drop(self, slot: Slot) -> None:
        """Forgets everything of a slot."""

    def read(self, name: str, slot: Slot, start: int, stop: int, out: Block | None = None) -> Block:
        """See ``StateStore.read_block``."""

    def write(self, name: str, slot: Slot, start: int, block: Block) -> None:
        """See ``StateStore.write_block``."""
