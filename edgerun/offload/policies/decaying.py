"""Sums of what was seen, in which the past counts less and less."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Collection, Sequence
from math import log2

from edgerun.offload.policies.base import Entry, Policy, Rank

NOTHING = float("-inf")


class Decaying(Policy):
    """Ranks by ``sum gain * 2 ** (-decay * steps ago)``, over all uses, in the cache or not.

    All sums shrink alike with time, so none is touched but those that grow: kept is the logarithm
    of what a sum would be at step 0. Steps are counted by layer.
    """

    decay: float

    def __init__(self) -> None:
        self._steps: dict[int, int] = defaultdict(int)
        self._sums: dict[Entry, float] = {}  # log2

    @abstractmethod
    def gain(self, score: float) -> float:
        """What a use adds, more than 0."""

    def use(self, layer: int, experts: Sequence[int], scores: Sequence[float]) -> None:
        self._steps[layer] += 1
        sums, now = self._sums, self.decay * self._steps[layer]
        for expert, score in zip(experts, scores, strict=True):
            entry, new = (layer, expert), log2(self.gain(score)) + now
            old = sums.get(entry, NOTHING)
            sums[entry] = (old if old > new else new) + log2(1 + 2.0 ** -abs(old - new))

    def lowest(self, entries: Collection[Entry]) -> Entry:
        # What has shrunk since is the same for all of a layer.
        sums = self._sums
        least = min([sums[entry] for entry in entries])
        return min([entry for entry in entries if sums[entry] == least])

    def rank(self, entry: Entry) -> Rank:
        return (self._sums[entry] - self.decay * self._steps[entry[0]],)
