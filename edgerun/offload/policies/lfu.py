"""The expert that was used least often while it was there leaves first, and old favourites fade.

Uses count from the age of the cache on, which is the rank of the last one that left (LFU with
dynamic aging: Arlitt et al., "Evaluating content management techniques for Web proxy caches",
2000).
"""

from __future__ import annotations

from collections.abc import Sequence

from edgerun.offload.policies.base import Entry, Policy, Rank


class LeastFrequentlyUsed(Policy):
    """Of those that count the same, the one that was not used for longest leaves."""

    def __init__(self) -> None:
        self._age = self._clock = 0
        self._uses: dict[Entry, int] = {}
        self._ranks: dict[Entry, tuple[int, int]] = {}

    def use(self, layer: int, experts: Sequence[int], scores: Sequence[float]) -> None:
        for expert in experts:
            entry = layer, expert
            self._clock += 1
            self._uses[entry] = self._uses.get(entry, 0) + 1
            self._ranks[entry] = self._age + self._uses[entry], self._clock

    def rank(self, entry: Entry) -> Rank:
        return self._ranks[entry]

    def leave(self, entry: Entry) -> None:
        self._age = self._ranks.pop(entry)[0]
        del self._uses[entry]


POLICY = LeastFrequentlyUsed
