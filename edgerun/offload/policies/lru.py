"""The expert that was not used for longest leaves first."""

from __future__ import annotations

from collections.abc import Sequence

from edgerun.offload.policies.base import Entry, Policy, Rank


class LeastRecentlyUsed(Policy):
    """Remembers the order of uses, that within a step included."""

    is_timeless = True

    def __init__(self) -> None:
        self._clock = 0
        self._used: dict[Entry, int] = {}

    def use(self, layer: int, experts: Sequence[int], scores: Sequence[float]) -> None:
        for expert in experts:
            self._clock += 1
            self._used[layer, expert] = self._clock

    def rank(self, entry: Entry) -> Rank:
        return (self._used[entry],)


POLICY = LeastRecentlyUsed
