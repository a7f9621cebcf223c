"""What a store of states can do, whatever it keeps: the engine knows no more than this.

A *slot* is a sequence's place in the store: neither a position, which counts tokens in a sequence,
nor a row, which counts tokens in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.state.fair_lock import FairLock

Slot: TypeAlias = int
# Of attention: keys and values, float32 [tokens, kv_heads, dim]. Of others: their arrays in order.
Block: TypeAlias = tuple[NDArray[np.float32], ...]


class Owner(Protocol):
    """Who has a slot: until it is forgotten, or says that it has it no more."""

    is_open: bool


Holder: TypeAlias = Callable[[], "Owner | None"]


@dataclass(frozen=True, slots=True)
class Room:
    """What a store can still take, for whoever decides what runs.

    Attributes:
        slots: sequences that can be opened.
        pages: pages that can be taken, those of stored prefixes that nobody uses among them.
        page_tokens: tokens of a page; 0 if states do not grow with their sequence.
        sequence_pages: most that a sequence has at a time, however long it is; 0 for no limit.
    """

    slots: int
    pages: int
    page_tokens: int
    sequence_pages: int = 0

    def pages_for(self, cached: int, length: int) -> int:
        """Pages that a sequence of ``cached`` tokens takes to grow to ``length``.

        One more if its last page is shared and not full, as after ``fork`` and ``match``.
        """
        return max(0, self._pages_of(length) - self._pages_of(cached)) if self.page_tokens else 0

    def _pages_of(self, tokens: int) -> int:
        pages = -(-tokens // self.page_tokens)
        return min(pages, self.sequence_pages) if self.sequence_pages else pages


class StateStore(Protocol):
    """States of several sequences.

    Any thread may open, fork, match, rewind and close. Whoever computes holds ``lock`` from
    ``reserve`` to ``commit``, and until the outputs are used: programs have buffers for one call
    at a time. A call is ``reserve``, the program, ``commit``; one that fails in between has changed
    nothing that counts.

    Attributes:
        context: most tokens of a sequence.
        lock: held by the thread that changes anything here.
    """

    @property
    def context(self) -> int: ...

    @property
    def lock(self) -> FairLock: ...

    def open(self, owner: Owner | None = None) -> Slot:
        """Takes a free slot, whose length is 0.

        Args:
            owner: the slot is free again as soon as this object is garbage, or its ``is_open`` is
                false. Both need no lock, so they may happen anywhere, in a finaliser too. Without
                an owner it is in use until ``close``.

        Raises:
            InputError: every slot is in use.
        """

    def close(self, slot: Slot) -> None:
        """Gives a slot back. What it held can be found by ``match`` until its room is needed."""

    def fork(
        self, slot: Slot, length: int | None = None, owner: Owner | None = None
    ) -> tuple[Slot, int]:
        """Opens a slot that begins with another's tokens, without copying pages.

        Args:
            slot: an open one; it may be changed or closed afterwards.
            length: how many of its tokens to begin with; all of them unless given.
            owner: see ``open``.

        Returns:
            the new slot, and the length that it has: ``length`` or less, see ``rewind``.

        Raises:
            InputError: every slot is in use, or the other has not so many tokens.
            Full: there is no memory for what cannot be shared.
        """

    def match(self, ids: Sequence[int], owner: Owner | None = None) -> tuple[Slot, int]:
        """Opens a slot that begins with the longest stored prefix of some ids.

        Found are ids that were given to ``commit``, in slots in use as well as in closed ones.
        The logits of the last id are wanted in general: then leave it out.

        Returns:
            the new slot, and how many of the ids it holds, 0 if nothing is stored.

        Raises:
            InputError: every slot is in use.
        """

    def length(self, slot: Slot) -> int:
        """Tokens that a slot holds."""

    def reserve(self, slot: Slot, length: int) -> None:
        """Makes sure that tokens from the slot's length up to ``length`` can be written.

        Raises:
            PromptError: ``length`` exceeds the context.
            Full: there is no page left. What the slot holds is as before.
        """

    def commit(self, slot: Slot, length: int, ids: Sequence[int] = ()) -> None:
        """Records that the first ``length`` tokens are written.

        Args:
            slot: the slot.
            length: at least the slot's length, and not more than was reserved.
            ids: the ids of the sequence from its beginning, at least ``length``; they are read
                during the call only. Without them ``match`` does not find these tokens.
        """

    def rewind(self, slot: Slot, length: int) -> int:
        """Forgets tokens from position ``length`` on, and what else it must.

        Returns:
            the length that could be kept: ``length`` where that is possible, less where a state
            goes back to checkpoints only or a window has passed on. Callers compute the rest
            again.
        """

    def checkpoint(self, slot: Slot) -> None:
        """Remembers the slot as it is, for ``rewind`` and ``fork`` to this length."""

    def room(self, without: Sequence[Slot] = ()) -> Room:
        """What can still be taken; if these slots were closed as well, which are in use."""

    def version(self, slot: Slot) -> int:
        """A number that is another one whenever a slot's tokens are not those it held before.

        A slot that grows keeps it. No two slots ever have the same, those of other stores in this
        process included: a device's copy of a slot's first ``length`` tokens is valid as long as
        the slot has the version from which it was made.
        """

    def read_block(
        self, name: str, slot: Slot, start: int, stop: int, out: Block | None = None
    ) -> Block:
        """Returns what a layer keeps of positions ``start .. stop - 1``.

        Positions that no row can see any more are zeros. A recurrent state has no positions: it is
        the one after ``stop`` tokens, which must be the slot's length, or where a block begins that
        the call has written already.

        Args:
            name: of the layer's state.
            slot: the sequence.
            start: the first position.
            stop: the position behind the last one.
            out: contiguous arrays to fill, of keys and values only; new ones unless given.
        """

    def write_block(self, name: str, slot: Slot, start: int, block: Block) -> None:
        """Stores what a layer keeps of positions from ``start`` on, which must be reserved."""
