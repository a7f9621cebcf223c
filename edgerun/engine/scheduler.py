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
                pages.free -= need  # all there is, and more
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
        first. The oldest has a part even if it seems that no page is left for it.
    """
    parts, need = _shares(running, room, limits)
    if need <= room.pages:
        return parts, []
    return _fitting(parts, room, [*paused[::-1], *running[::-1]])


def _shares(running: list[Sequence], room: Room, limits: Limits) -> tuple[list[Part], int]:
    """The rows of each sequence, if pages were no matter, and how many they are."""
    replies = sum([sequence.pending == 1 for sequence in running])
    budget = limits.chunk_rows - replies
    if replies:
        budget = min(budget, limits.prompt_rows)
    parts, need = [], 0
    for sequence in running:
        rows = sequence.pending
        if rows > 1:
            rows = min(rows, budget)
            budget -= rows
        if rows:
            parts.append(Part(sequence, rows))
            need += room.pages_for(sequence.cached, sequence.cached + rows)
    return parts, need


def _fitting(
    parts: list[Part], room: Room, victims: list[Sequence]
) -> tuple[list[Part], list[Sequence]]:
    """The parts for which there are pages, and the victims who had to give theirs, in order."""
    pages = _Pages(room, victims)
    fitting: list[Part] = []
    for sequence, rows in parts:
        if sequence in pages.preempted:
            break  # and so are all that are younger
        need = room.pages_for(sequence.cached, sequence.cached + rows)
        fits = pages.take(need)
        while not fits and pages.preempt(keep=sequence):
            fits = pages.take(need)
        if fits or not fitting:
            fitting.append(Part(sequence, rows))
    return fitting, pages.preempted


def _is_being_computed(sequence: Sequence, running: list[Sequence], page_tokens: int) -> bool:
    """Whether a prompt that runs will have written more pages that a sequence can share."""
    if not page_tokens:
        return False
    shared = [shared_prefix(sequence.ids, other.ids) for other in running]
    pairs = list(zip(shared, running, strict=True))
    there = max((min(length, other.cached) for length, other in pairs), default=0)
    return any(
        length // page_tokens > there // page_tokens for length, other in pairs if other.pending > 1
    )
