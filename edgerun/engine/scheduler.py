"""What runs next: pure functions of sequences and room, without arrays, clock, or I/O.

Everywhere the older comes before the younger: a sequence that waits is not overtaken, pages are
taken from the youngest, and so the oldest that is wanted always advances.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from edgerun.engine.beginnings import shared_pages
from edgerun.engine.sequence import Sequence
from edgerun.state import Room


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a call may be.

    Attributes:
        chunk_rows: most rows of a call whose logits are wanted, at least 1; also, most sequences
            that run.
        prompt_rows: most of them that are a prompt's, if replies run too: what a prompt may delay
            them by.
        call_rows: most rows of a call, where that is more than ``chunk_rows``.
    """

    chunk_rows: int
    prompt_rows: int
    call_rows: int = 0


class Part(NamedTuple):
    """The next ``rows`` ids of a sequence, for one call."""

    sequence: Sequence
    rows: int


# What the store has once some sequences have lost their slots; pages that others share stay.
RoomWithout: TypeAlias = Callable[[list[Sequence]], Room]


class _Pages:
    """Pages to give: those that are free, and if need be those of sequences that run."""

    def __init__(self, room: RoomWithout, victims: list[Sequence]) -> None:
        """Takes pages from ``victims`` in order."""
        self.room = room([])
        self.taken = 0
        self.preempted: list[Sequence] = []
        self._room_without = room
        self._victims = iter(victims)

    def take(self, count: int) -> bool:
        """Takes pages, if there are so many."""
        if self.taken + count > self.room.pages:
            return False
        self.taken += count
        return True

    def preempt(self, *, keep: Sequence | None = None) -> bool:
        """Ends the stay of the next victim; False if there is none, or only those to keep."""
        victim = next(self._victims, None)
        if victim is None or victim is keep:
            self._victims = iter(())
            return False
        self.preempted.append(victim)
        self.room = self._room_without(self.preempted)
        return True


def admit(
    waiting: list[Sequence],
    running: list[Sequence],
    paused: list[Sequence],
    room: RoomWithout,
    limits: Limits,
) -> tuple[list[Sequence], list[Sequence]]:
    """Decides who gets a slot.

    Only a sequence whose ids all find pages is admitted, or it would soon be in the way of those
    that run; pages that it will share with one of these are there. Who is paused makes place. Who
    begins like a prompt that is being computed waits for the pages that both will share.

    Args:
        waiting: sequences without a slot, oldest first.
        running: sequences with one, oldest first.
        paused: sequences with one whose readers are behind, oldest first.
        room: what the store has for them.
        limits: bounds the number of sequences.

    Returns:
        sequences that get a slot, and those that lose theirs first. If one waits and none runs,
        one gets a slot.
    """
    pages = _Pages(room, paused[::-1])
    pages_for = pages.room.pages_for
    pages.taken = sum(pages_for(other.cached, len(other.ids)) for other in running)
    slots = min(pages.room.slots, limits.chunk_rows - len(running) - len(paused))
    admitted: list[Sequence] = []
    for sequence in waiting:
        there, coming = _shared(sequence, [*running, *admitted], pages.room.page_tokens)
        if coming > there:
            continue
        before = len(pages.preempted)
        need = pages_for(there, len(sequence.ids) + 1)
        while slots + len(pages.preempted) <= len(admitted) or not pages.take(need):
            if not pages.preempt():
                if running or admitted:
                    return admitted, pages.preempted[:before]
                pages.taken += need  # all there is, and more
                break
        admitted.append(sequence)
    return admitted, pages.preempted


def schedule(
    running: list[Sequence], paused: list[Sequence], room: RoomWithout, limits: Limits
) -> tuple[list[Part], list[Sequence]]:
    """Decides what the next call computes.

    Every reply that is wanted has its row in each call. What is left of the call goes to prompts.

    Args:
        running: sequences with a slot that are wanted, oldest first, at most ``chunk_rows``.
        paused: sequences with one whose readers are behind, oldest first.
        room: what the store has for them.
        limits: bounds the rows.

    Returns:
        the parts of the call, oldest first, and the sequences that must give their slot back
        first. The oldest has a part even if it seems that no page is left for it.
    """
    pages = _Pages(room, [*paused[::-1], *running[::-1]])
    return _fitting(_shares(running, limits), pages), pages.preempted


def _shares(running: list[Sequence], limits: Limits) -> list[Part]:
    """The rows of each sequence, if pages were no matter."""
    replies = sum([sequence.pending == 1 for sequence in running])
    budget = max(limits.chunk_rows, limits.call_rows) - replies
    scored = limits.chunk_rows - len(running)
    if replies:
        budget = min(budget, limits.prompt_rows)
    parts = []
    for sequence in running:
        rows = sequence.pending
        if rows > 1:
            rows = min(rows, budget)
            if sequence.wants_all and (sequence.take_logits is None or len(running) > 1):
                rows = min(rows, scored + 1)
                scored -= max(0, rows - 1)
            budget -= rows
        if rows:
            parts.append(Part(sequence, rows))
    return parts


def _fitting(parts: list[Part], pages: _Pages) -> list[Part]:
    """The parts for which there are pages."""
    fitting: list[Part] = []
    for sequence, rows in parts:
        if sequence in pages.preempted:
            break  # and so are all that are younger
        need = pages.room.pages_for(sequence.cached, sequence.cached + rows)
        fits = pages.take(need)
        while not fits and pages.preempt(keep=sequence):
            fits = pages.take(need)
        if fits or not fitting:
            fitting.append(Part(sequence, rows))
    return fitting


def _shared(sequence: Sequence, running: list[Sequence], page_tokens: int) -> tuple[int, int]:
    """Tokens in whole pages that others have for a sequence: now, and when they are computed."""
    # Whose logits are wanted is computed, whoever has it.
    most = sequence.logits_from // page_tokens if page_tokens else 0
    if not most or not running:
        return 0, 0
    keys = sequence.beginning.keys(page_tokens)
    there = coming = 0
    for other in running:
        pages = shared_pages(keys, other.beginning.keys(page_tokens), most)
        there = max(there, min(pages, other.cached // page_tokens))
        if other.pending > 1:
            coming = max(coming, pages)
    return there * page_tokens, coming * page_tokens
