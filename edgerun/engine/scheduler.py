"""What runs next: pure functions of sequences and room, without arrays, clock, or I/O.

Everywhere the older comes before the younger: a sequence that waits is not overtaken, pages are
taken from the youngest, and so the oldest that is wanted always advances.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from edgerun.engine.sequence import Sequence, shared_prefix
from edgerun.state import Room


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a call may be.

    Attributes:
        chunk_rows: most rows of a call, at least 1; also, most sequences that run.
        prompt_rows: most of them that are a prompt's, if replies run too: what a prompt may delay
            them by.
    """

    chunk_rows: int
    prompt_rows: int


class Part(NamedTuple):
    """The next ``rows`` ids of a sequence, for one call."""

    sequence: Sequence
    rows: int


class _Pages:
    """Pages to give: those that are free, and if need be those of sequences that run."""

    def __init__(self, room: Room, victims: list[Sequence]) -> None:
        """Takes pages from ``victims`` in order."""
        self.free = room.pages
        self.preempted: list[Sequence] = []
        self._room = room
        self._victims = iter(victims)

    def take(self, count: int) -> bool:
        """Takes pages, if there are so many."""
        if count > self.free:
            return False
        self.free -= count
        return True

    def preempt(self, *, keep: Sequence | None = None) -> bool:
        """Ends the stay of the next victim; False if there is none, or only those to keep."""
        victim = next(self._victims, None)
        if victim is None or victim is keep:
            self._victims = iter(())
            return False
        self.preempted.append(victim)
        self.free += self._room.pages_for(0, victim.cached)
        return True


def admit(
    waiting: list[Sequence],
    running: list[Sequence],
    paused: list[Sequence],
    room: Room,
    limits: Limits,
) -> tuple[list[Sequence], list[Sequence]]:
    """Decides who gets a slot.

    Only a sequence whose ids all find pages is admitted, or it would soon be in the way of those
    that run. Who is paused makes place. Who begins like a prompt that is being computed waits for
    the pages that both will share.

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
    pages.free -= sum(room.pages_for(each.cached, len(each.ids)) for each in running)
    slots = min(room.slots, limits.chunk_rows - len(running) - len(paused))
    admitted: list[Sequence] = []
    for sequence in waiting:
        if _is_being_computed(sequence, [*running, *admitted], room.page_tokens):
            continue
        before = len(pages.preempted)
        need = room.pages_for(0, len(sequence.ids) + 1)
        while slots + len(pages.preempted) <= len(admitted) or not pages.take(need):
            if not pages.preempt():
                if running or admitted:
                    return admitted, pages.preempted[:before]
                break
        admitted.append(sequence)
    return admitted, pages.preempted


def schedule(
    running: list[Sequence], paused: list[Sequence], room: Room, limits: Limits
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
        first. If one runs there is a part, unless no page is left for the oldest.
    """
    replies = sum(sequence.pending == 1 for sequence in running)
    budget = limits.chunk_rows - replies
    if replies:
        budget = min(budget, limits.prompt_rows)
    pages = _Pages(room, [*paused[::-1], *running[::-1]])
    parts: list[Part] = []
    for sequence in running:
        if sequence in pages.preempted:
            break  # and so are all that are younger
        is_reply = sequence.pending == 1
        rows = 1 if is_reply else min(sequence.pending, budget)
        need = room.pages_for(sequence.cached, sequence.cached + rows)
        while not pages.take(need):
            if not pages.preempt(keep=sequence):
                break
        else:
            if rows:
                parts.append(Part(sequence, rows))
                budget -= 0 if is_reply else rows
    return parts, pages.preempted


def _is_being_computed(sequence: Sequence, running: list[Sequence], page_tokens: int) -> bool:
    """Whether a prompt that runs will have written pages that a sequence can share."""
    for other in running if page_tokens else ():
        if other.pending > 1:
            shared = shared_prefix(sequence.ids, other.ids) // page_tokens * page_tokens
            if shared > other.cached:
                return True
    return False
