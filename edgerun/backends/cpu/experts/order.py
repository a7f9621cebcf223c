"""The order in which experts leave memory: what came in vain, what was used, what is awaited."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from heapq import nsmallest
from itertools import chain, filterfalse, islice
from typing import TypeAlias

from edgerun.backends.cpu.experts.foresight import Foresight
from edgerun.backends.cpu.experts.protocol import Entry, Eviction

Worth: TypeAlias = tuple[float, ...]

UNUSED, USED, AWAITED = range(3)  # what an expert is worth before its policy is asked


class LeavingOrder:
    """Ranks the experts in memory.

    Attributes:
        unused: experts that came before anybody asked, and were not needed so far.
    """

    def __init__(
        self, policy: Eviction, foresight: Foresight, resident: Mapping[Entry, object]
    ) -> None:
        """Takes who ranks what was used, who awaits something, and what is in memory."""
        self.unused: set[Entry] = set()
        self._policy, self._foresight, self._resident = policy, foresight, resident

    def lowest(self, count: int, needed: Set[Entry]) -> list[Entry]:
        """So many in memory, or fewer, that are not needed, the first to leave first.

        To rank them all, where the policy has no order, takes longer than to read one.
        """
        used = self._policy.in_order()
        if used is None:
            return nsmallest(count, self._resident.keys() - needed, key=self.worth)
        return list(islice(filterfalse(needed.__contains__, self._all(used)), count))

    def worth(self, entry: Entry) -> Worth:
        """What an expert is ranked by."""
        if self._foresight.awaits(entry):
            return AWAITED, -entry[0], entry[1]  # what is needed last leaves first
        if entry in self.unused:
            return UNUSED, *entry
        return USED, *self._policy.rank(entry), *entry

    def leave(self, entry: Entry) -> None:
        """An expert has left."""
        if entry in self.unused:
            self.unused.remove(entry)
        else:
            self._policy.leave(entry)

    def _all(self, used: Iterable[Entry]) -> Iterator[Entry]:
        """All in memory as they are worth; those that were used come in their order."""
        unused, resident, awaits = self.unused, self._resident, self._foresight.awaits
        others = (entry for entry in used if entry not in unused)
        for entry in chain(sorted(unused), others):
            if entry in resident and not awaits(entry):
                yield entry
        awaited = filter(resident.__contains__, self._foresight.awaited())
        yield from sorted(awaited, key=self.worth)
