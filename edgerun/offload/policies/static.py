"""The experts that are used most in the beginning stay for ever; the others share what is left.

So do runtimes that pin experts by a profile. A missing expert needs a place to be computed from, so
the last places of the cache go from one to the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from edgerun.offload.policies.base import Entry, Policy, Rank


class Static(Policy):
    """Counts uses in the first ``profiled`` steps of each layer and never after."""

    def __init__(self, profiled: int = 128) -> None:
        self._profiled = profiled
        self._clock = 0
        self._steps: dict[int, int] = defaultdict(int)
        self._counts: dict[Entry, int] = defaultdict(int)
        self._used: dict[Entry, int] = {}

    def use(self, layer: int, experts: Sequence[int], scores: Sequence[float]) -> None:
        self._steps[layer] += 1
        for expert in experts:
            self._clock += 1
            self._used[layer, expert] = self._clock
            if self._steps[layer] <= self._profiled:
                self._counts[layer, expert] += 1

    def rank(self, entry: Entry) -> Rank:
        return (self._counts[entry], self._used[entry])


POLICY = Static
