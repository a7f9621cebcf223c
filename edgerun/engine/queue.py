"""The sequences that take part, and what the next call computes of them."""

from __future__ import annotations

from edgerun.engine.scheduler import Limits, Part, admit, schedule
from edgerun.engine.sequence import Sequence
from edgerun.engine.slots import Slots, take_back
from edgerun.errors import Full
from edgerun.state import Room, StateStore


class Queue:
    """Gives slots and pages of a store to sequences, call by call.

    All of it is for the thread that holds the store's lock.

    Attributes:
        sequences: that have not ended, oldest first.
        first_room: what the store had before any.
    """

    def __init__(self, store: StateStore) -> None:
        """Takes a store in which nobody else opens slots."""
        self.sequences: list[Sequence] = []
        self.first_room = store.room()
        self._store, self._slots = store, Slots(store)
        self._parts: list[Part] = []  # of the last call
        self._same_for = 0  # sequences there may be if the next call has the same parts

    def add(self, sequence: Sequence) -> None:
        """Lets a sequence take part; once."""
        if not sequence.is_added:
            sequence.is_added = True
            self.sequences.append(sequence)

    def parts(self, limits: Limits) -> list[Part]:
        """What the next call computes, with slots and pages for all of it."""
        self._parts = self._same_parts() or self._next_parts(limits)
        return self._parts

    def room(self, *, retires: bool = True) -> Room:
        """What the store has for sequences to come; ``retires`` between calls, not within one."""
        if retires:
            self._retire()
        return self._slots.room()

    def spare_tokens(self, part: Part) -> int:
        """Tokens behind those of a part for which it has pages, too; 0 in a store without pages."""
        page = self.first_room.page_tokens
        return -(part.sequence.cached + part.rows) % page if page else 0

    def recover(self) -> None:
        """After a step that Ctrl-C or a defect left in the middle."""
        for sequence in self.sequences:
            if sequence.lease is not None:
                sequence.recover(self._store.length(sequence.lease.slot))

    def _retire(self) -> None:
        ended = [sequence for sequence in self.sequences if sequence.is_ended]
        for sequence in ended:
            self._slots.end(sequence)
            self.sequences.remove(sequence)
        if ended:
            self._parts = []  # or they would be remembered

    def _same_parts(self) -> list[Part]:
        """The parts of the last call, if the next has the same: most have, of replies alone."""
        if len(self.sequences) != self._same_for:
            return []
        page_tokens = self.first_room.page_tokens
        for sequence, rows in self._parts:
            in_page = page_tokens and sequence.cached % page_tokens
            is_next = rows == sequence.pending == 1
            if not in_page or not is_next or not sequence.is_wanted:
                return []
        return self._parts  # their pages are reserved to the end

    def _next_parts(self, limits: Limits) -> list[Part]:
        self._retire()
        active: list[Sequence] = []
        paused: list[Sequence] = []
        for sequence in self.sequences:
            if sequence.is_wanted:
                active.append(sequence)
            elif sequence.lease is not None:
                paused.append(sequence)
        running = self._admitted(active, paused, limits)
        parts, preempted = schedule(running, paused, self._slots.room, limits)
        for sequence in preempted:
            take_back(sequence)
        reserved: list[Part] = []
        for part in parts:
            if self._reserve(part, [*running, *paused], reserved):
                reserved.append(part)
        if running and not reserved:
            running[0].starve()
        # Who waits for a slot goes on to, until one of these ends or needs another page.
        self._same_for = len(reserved) + [each.lease for each in self.sequences].count(None)
        return reserved

    def _admitted(
        self, active: list[Sequence], paused: list[Sequence], limits: Limits
    ) -> list[Sequence]:
        """Gives slots to sequences that wait; returns those that have one now, oldest first."""
        waiting = [sequence for sequence in active if sequence.lease is None]
        if not waiting:
            return active
        running = [sequence for sequence in active if sequence.lease is not None]
        admitted, preempted = admit(waiting, running, paused, self._slots.room, limits)
        for sequence in preempted:
            paused.remove(sequence)
            take_back(sequence)
        for sequence in admitted:
            self._slots.give(sequence)
            stats = sequence.stats
            if not stats.prompt_tokens:
                stats.prompt_tokens = sequence.prompt_tokens
                stats.reused_tokens = stats.read_tokens = sequence.cached
        return [sequence for sequence in active if sequence.lease is not None]

    def _reserve(self, part: Part, running: list[Sequence], reserved: list[Part]) -> bool:
        """Gives a part its pages, in the worst case those of all who have none yet."""
        sequence = part.sequence
        while sequence.lease is not None:
            try:
                length = sequence.cached + part.rows
                page = self.first_room.page_tokens or 1
                whole = min(self._store.context, -(-length // page) * page)
                self._store.reserve(sequence.lease.slot, whole)
                return True
            except Full:
                served = [part.sequence for part in reserved] + [sequence]
                others = [other for other in running if other.lease and other not in served]
                if not self._slots.evict():
                    take_back(others[-1] if others else sequence)
        return False
