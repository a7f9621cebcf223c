"""The expert that was not used for longest leaves first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from edgerun.offload.policies.base import Entry, Policy, Rank


class LeastRecentlyUsed(Policy):
    """Remembers the order of uses, that within a step included."""

    def __init__(self) -> None:
        self._clock = 0
        self._used: OrderedDict[Entry, int] = OrderedDict()

    def use(self, layer: int, experts: Sequence[int], scores: Sequence[float]) -> None:
        for expert in experts:
            self._clock += 1
            self._used[layer, expert] = self._clock
            self._used.move_to_end((layer, expert))

    def rank(self, entry: Entry) -> Rank:
        return (self._used[entry],)

    def in_order(self) -> Iterable[Entry]:
        return self._used

    def leave(self, entry: Entry) -> None:
        del self._used[entry]


POLICY = LeastRecentlyUsed
