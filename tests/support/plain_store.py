"""A store and a program in plain Python: what a sequence gets is a function of what is stored."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import Full, InputError
from edgerun.state import Batch, Room
from edgerun.state.fair_lock import FairLock

VOCAB = 32
END = 0
PAGE_TOKENS = 4


def next_id(ids: Sequence[int]) -> int:
    """The rule: depends on every id and on its position."""
    return 1 + sum((place + 1) * (id_ + 1) for place, id_ in enumerate(ids)) % (VOCAB - 2)


def logits_of(ids: Sequence[int]) -> NDArray[np.float32]:
    """Logits by which the rule's id is the likeliest, and the last one is never drawn."""
    logits = np.zeros(VOCAB, np.float32)
    logits[-1] = -1000
    logits[next_id(ids)] = 1
    return logits


class Page:
    """Ids of ``PAGE_TOKENS`` positions; None where nothing was written."""

    def __init__(self, source: Page | None = None) -> None:
        self.ids: list[int | None] = list(source.ids) if source else [None] * PAGE_TOKENS


def tripping(method: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a test interrupt the engine on the way into a method and on the way out."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any) -> Any:
        self.trip()
        result = method(self, *arguments)
        self.trip()
        return result

    return call


class PlainStore:
    """A ``StateStore`` of a few pages, shared by sequences that begin with the same ids.

    Attributes:
        trip: called before and after everything that changes the store; may raise.
    """

    def __init__(self, slots: int = 4, pages: int = 64, context: int = 64) -> None:
        self.context = context
        self.lock = FairLock()
        self.pages = pages
        self.trip: Callable[[], None] = lambda: None
        self._owners: list[Callable[[], Any]] = [lambda: None] * slots
        self._tables: list[list[Page]] = [[] for _ in range(slots)]
        self._lengths = [0] * slots

    def open(self, owner: Any = None) -> int:
        self._collect()
        for slot, held_by in enumerate(self._owners):
            if held_by() is None:
                self._owners[slot] = weakref.ref(owner)
                return slot
        raise InputError("all slots are in use")

    @tripping
    def match(self, ids: Sequence[int], owner: Any = None) -> tuple[int, int]:
        slot, best = self.open(owner), -1
        for other, length in enumerate(self._lengths):
            content = [id_ for page in self._tables[other] for id_ in page.ids][:length]
            whole = len(ids) // PAGE_TOKENS * PAGE_TOKENS
            while whole > self._lengths[slot] and content[:whole] != list(ids[:whole]):
                whole -= PAGE_TOKENS
            if whole > self._lengths[slot]:
                best, self._lengths[slot] = other, whole
        if best >= 0:
            self._tables[slot] = self._tables[best][: self._lengths[slot] // PAGE_TOKENS]
        return slot, self._lengths[slot]

    def length(self, slot: int) -> int:
        return self._lengths[slot]

    @tripping
    def reserve(self, slot: int, length: int) -> None:
        assert length <= self.context
        self._collect()
        table = self._tables[slot]
        while len(table) * PAGE_TOKENS < length:
            if self._free() < 1:
                raise Full("no page is left")
            table.append(Page())
        last = self._lengths[slot] // PAGE_TOKENS
        if sum(table[last] in other for other in self._tables) > 1:  # shared: a copy of its own
            table[last] = Page(table[last])

    @tripping
    def commit(self, slot: int, length: int, ids: Sequence[int] = ()) -> None:
        assert self._lengths[slot] <= length <= len(self._tables[slot]) * PAGE_TOKENS
        assert self.content(slot, length) == list(ids[:length])
        self._lengths[slot] = length

    @tripping
    def checkpoint(self, slot: int) -> None:
        """Goes back to any length."""

    @tripping
    def rewind(self, slot: int, length: int) -> int:
        self._lengths[slot] = min(length, self._lengths[slot])
        del self._tables[slot][-(-self._lengths[slot] // PAGE_TOKENS) :]
        return self._lengths[slot]

    def room(self, without: Sequence[int] = ()) -> Room:
        self._collect()
        slots = sum(owner() is None for owner in self._owners) + len(without)
        return Room(slots, self._free(without), PAGE_TOKENS)

    def content(self, slot: int, length: int) -> list[int | None]:
        return [id_ for page in self._tables[slot] for id_ in page.ids][:length]

    def write(self, slot: int, position: int, id_: int) -> None:
        self._tables[slot][position // PAGE_TOKENS].ids[position % PAGE_TOKENS] = id_

    def _free(self, without: Sequence[int] = ()) -> int:
        tables = [table for slot, table in enumerate(self._tables) if slot not in without]
        return self.pages - len({page for table in tables for page in table})

    def _collect(self) -> None:
        for slot, owner in enumerate(self._owners):
            held_by = owner()
            if held_by is None or not held_by.is_open:
                self._owners[slot] = lambda: None
                self._tables[slot], self._lengths[slot] = [], 0


class PlainPrograms:
    """Writes ids into the store and computes logits from what stands there.

    Attributes:
        calls: the rows of each call by slot, for tests of what shares a call.
        trip: called with the batch when all is written; may raise.
    """

    is_layered = False
    has_rows_alike = True

    def __init__(self) -> None:
        self.calls: list[dict[int, int]] = []
        self.trip: Callable[[Batch], None] = lambda batch: None

    def expect(self, rows: int) -> None:
        """Is there already."""

    def run(self, batch: Batch, store: PlainStore) -> dict[str, NDArray[np.float32]]:
        slots = batch.sequences.tolist()
        self.calls.append({slot: slots.count(slot) for slot in slots})
        positions = batch.positions.tolist()
        for id_, position, slot in zip(batch.ids.tolist(), positions, slots, strict=True):
            store.write(slot, position, id_)
        logits = np.zeros((len(batch.logit_rows), VOCAB), np.float32)
        for index, row in enumerate(batch.logit_rows.tolist()):
            content = store.content(slots[row], positions[row] + 1)
            assert None not in content
            logits[index] = logits_of(content)  # type: ignore[arg-type]
        self.trip(batch)
        return {"logits": logits}

    def close(self) -> None:
        pass
