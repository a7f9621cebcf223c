"""The order in which experts leave memory: what came in vain, what was used, what is awaited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from heapq import heapify, heappop, heappush, nsmallest
from typing import TypeAlias

from edgerun.backends.cpu.experts.foresight import Foresight
from edgerun.backends.cpu.experts.protocol import Entry, Eviction

Worth: TypeAlias = tuple[float, ...]

MOST_NOTES = 4  # of an expert, most of them out of date
UNUSED, USED, AWAITED = range(3)  # what an expert is worth before its policy is asked


class LeavingOrder:
    """Ranks the experts in memory; whoever changes what one is worth says so by ``note``.

    Most changes make an expert worth more, as every use does. Such a note is not written: the one
    that there is lies too low, and is put right when it is the lowest.

    Attributes:
        unused: experts that came before anybody asked, and were not needed so far.
    """

    def __init__(
        self, policy: Eviction, foresight: Foresight, resident: Mapping[Entry, object]
    ) -> None:
        """Takes who ranks what was used, who awaits something, and what is in memory."""
        self.unused: set[Entry] = set()
        self._policy, self._foresight, self._resident = policy, foresight, resident
        self._notes: list[tuple[Worth, Entry]] = []  # a heap
        self._noted: dict[Entry, Worth] = {}  # the note that counts: worth no more than the expert

    def note(self, entries: Iterable[Entry]) -> None:
        """Takes note of what experts are worth now, those of them that are in memory."""
        notes = self._take_notes()
        for entry in entries:
            if entry in self._resident:
                worth = self._worth(entry)
                if entry not in self._noted or worth < self._noted[entry]:
                    self._push(notes, worth, entry)
        self._notes = notes

    def lowest(self, count: int, needed: Set[Entry]) -> list[Entry]:
        """So many in memory, or fewer, that are not needed, the first to leave first.

        To rank them all would take longer than to read one.
        """
        if not self._policy.is_timeless:
            return nsmallest(count, self._resident.keys() - needed, key=self._worth)
        lowest: dict[Entry, None] = {}
        notes, taken = self._take_notes(), []
        while notes and len(lowest) < count:
            noted, entry = heappop(notes)
            if entry not in self._resident or noted != self._noted.get(entry):
                continue
            worth = self._worth(entry)
            if worth != noted:
                self._push(notes, worth, entry)
                continue
            taken.append((worth, entry))
            if entry not in needed:
                lowest[entry] = None
        for each in taken:
            heappush(notes, each)
        self._notes = notes
        return list(lowest)

    def leave(self, entry: Entry) -> None:
        """An expert has left."""
        self._noted.pop(entry, None)
        if entry in self.unused:
            self.unused.remove(entry)
        else:
            self._policy.leave(entry)

    def _take_notes(self) -> list[tuple[Worth, Entry]]:
        """The notes; made anew if they are many, or were not put back as the policy had failed."""
        notes, self._notes = self._notes, []
        if not notes or len(notes) > MOST_NOTES * (len(self._resident) + 1):
            self._noted = {entry: self._worth(entry) for entry in self._resident}
            notes = [(worth, entry) for entry, worth in self._noted.items()]
            heapify(notes)
        return notes

    def _push(self, notes: list[tuple[Worth, Entry]], worth: Worth, entry: Entry) -> None:
        heappush(notes, (worth, entry))
        self._noted[entry] = worth

    def _worth(self, entry: Entry) -> Worth:
        if self._foresight.awaits(entry):
            return AWAITED, -entry[0], entry[1]  # what is needed last leaves first
        if entry in self.unused:
            return UNUSED, *entry
        return USED, *self._policy.rank(entry), *entry
