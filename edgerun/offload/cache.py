"""A cache of experts: a number of equal slots, and a policy that says who leaves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from heapq import nsmallest
from itertools import chain, filterfalse, islice

from edgerun.errors import InputError
from edgerun.offload.policies.base import Entry, Policy, Rank


@dataclass(frozen=True, slots=True)
class Step:
    """What a layer needs at once: the experts of a token, or of all tokens of a call.

    Attributes:
        layer: its number.
        experts: each once.
        scores: how much the result of each counts.
    """

    layer: int
    experts: tuple[int, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Access:
    """What a step led to.

    Attributes:
        missing: experts that have to be fetched.
        evicted: those that make room for them.
    """

    missing: tuple[Entry, ...]
    evicted: tuple[Entry, ...]


NOTHING = Access((), ())


class ExpertCache:
    """Knows which experts are resident; moves nothing itself.

    Experts of a step that are resident when it is over are computed from their slots, so none of
    them leaves for another.
    """

    def __init__(self, capacity: int, policy: Policy) -> None:
        """Makes an empty cache.

        Args:
            capacity: experts that it has room for.
            policy: says who leaves; of this cache alone.

        Raises:
            InputError: there is no room at all.
        """
        if capacity < 1:
            raise InputError(f"a cache of {capacity} experts; expected room for 1 or more")
        self._capacity = capacity
        self._policy = policy
        self._resident: set[Entry] = set()
        self._of_layer: defaultdict[int, set[Entry]] = defaultdict(set)  # the same
        self._unused: dict[Entry, int] = {}  # that came before anybody needed them, and their place

    @property
    def resident(self) -> frozenset[Entry]:
        """The experts that are there."""
        return frozenset(self._resident)

    def fill(self, entries: Sequence[Entry], history: Iterable[Step] = ()) -> tuple[Entry, ...]:
        """Makes experts resident that nobody needs yet, where there is room left.

        Those that were never used leave before all others, the last of them first.

        Args:
            entries: the likeliest first.
            history: what was needed before; the policy learns of it.

        Returns:
            those that were not resident.
        """
        room = self._capacity - len(self._resident)
        missing = [entry for entry in dict.fromkeys(entries) if entry not in self._resident][:room]
        self._add(missing)
        self._unused.update((entry, place) for place, entry in enumerate(missing))
        for step in history:
            self.use(step)
        return tuple(missing)

    def access(self, step: Step) -> Access:
        """Makes the experts of a step resident.

        Raises:
            InputError: they are more than the cache has room for; nothing was changed.
        """
        return self.admit(step, step.experts)

    def admit(self, step: Step, experts: Collection[int]) -> Access:
        """Makes some experts of a step resident; the others are computed elsewhere.

        Raises:
            InputError: with those of the step that are there already they are more than the cache
                has room for; nothing was changed.
        """
        resident, own = self._resident, [(step.layer, expert) for expert in step.experts]
        if all([entry in resident or entry[1] not in experts for entry in own]):
            self.use(step)  # as with most tokens: nothing comes, so nothing has to leave
            return NOTHING
        entries = list(dict.fromkeys([e for e in own if e in resident or e[1] in experts]))
        if len(entries) > self._capacity:
            raise InputError(
                f"layer {step.layer} needs {len(entries)} experts at once and the cache has room "
                f"for {self._capacity}: give it room for {len(entries)} or more"
            )
        missing = tuple(entry for entry in entries if entry not in self._resident)
        excess = len(self._resident) + len(missing) - self._capacity
        evicted = tuple(self._victims(excess, entries)) if excess > 0 else ()
        self._remove(evicted)
        self._add(missing)
        self.use(step)
        return Access(missing, evicted)

    def exchange(self, entry: Entry) -> Access | None:
        """Makes an expert that was used before resident, if it is worth more than one that is.

        Returns:
            what that led to; None if the expert is there already, or worth no more than any.
        """
        if entry in self._resident:
            return None
        if len(self._resident) < self._capacity:
            self._add((entry,))
            return Access((entry,), ())
        # Layers get about as many at first: looking at all of them would take longer than a layer.
        own = self._of_layer[entry[0]]
        victim = self._lowest(own) if own else min(self._resident, key=self._rank)
        if self._rank(entry)[:2] <= self._rank(victim)[:2]:
            return None
        self._leave(victim)
        self._remove((victim,))
        self._add((entry,))
        return Access((entry,), (victim,))

    def _lowest(self, own: set[Entry]) -> Entry:
        """Who of a layer leaves first: those that were never used before all others."""
        unused = own & self._unused.keys() if self._unused else own - own
        return min(unused, key=self._rank) if unused else self._policy.lowest(own)

    def _add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._resident.add(entry)
            self._of_layer[entry[0]].add(entry)

    def _remove(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._resident.remove(entry)
            self._of_layer[entry[0]].remove(entry)

    def _victims(self, count: int, needed: list[Entry]) -> Iterator[Entry]:
        for entry in self._lowest_of_all(count, {*needed}):
            self._leave(entry)
            yield entry

    def _lowest_of_all(self, count: int, needed: Set[Entry]) -> list[Entry]:
        """So many that are not needed, the first to leave first.

        To rank them all, where the policy has an order, would take as long as there are slots.
        """
        used = self._policy.in_order()
        if used is None:
            return nsmallest(count, self._resident.difference(needed), key=self._rank)
        resident, unused = self._resident, self._unused
        order = chain(sorted(unused, key=self._rank), filterfalse(unused.__contains__, used))
        others = (entry for entry in order if entry in resident and entry not in needed)
        return list(islice(others, count))

    def use(self, step: Step) -> None:
        """A step for which nobody comes: the policy learns of it."""
        if self._unused:
            for expert in step.experts:
                self._unused.pop((step.layer, expert), None)
        self._policy.use(step.layer, step.experts, step.scores)

    def _rank(self, entry: Entry) -> tuple[bool, Rank, Entry]:
        """Who leaves first has the lowest."""
        place = self._unused.get(entry)
        rank = self._policy.rank(entry) if place is None else (-place,)
        return place is None, rank, entry

    def _leave(self, entry: Entry) -> None:
        if self._unused.pop(entry, None) is None:
            self._policy.leave(entry)
