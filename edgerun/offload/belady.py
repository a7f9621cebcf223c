"""The yardstick: what a cache could do that knew what comes."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

from edgerun.offload.cache import Step
from edgerun.offload.policies.base import Entry, Policy, Rank

NEVER = float("-inf")


class Belady(Policy):
    """The expert whose next use is farthest away leaves first; no policy has fewer misses.

    That holds for steps of several experts, too, all of which must be there at once: keeping a
    nearer one in the place of a farther one never costs a miss more.

    Source: Belady 1966, "A study of replacement algorithms for a virtual-storage computer".
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        """Takes all steps, in the order in which they will be told."""
        self._uses: dict[Entry, deque[int]] = defaultdict(deque)
        for time, step in enumerate(steps):
            for expert in step.experts:
                self._uses[step.layer, expert].append(time)

    def use(self, layer: int, experts: Sequence[int], scores: Sequence[float]) -> None:
        for expert in experts:
            self._uses[layer, expert].popleft()

    def rank(self, entry: Entry) -> Rank:
        uses = self._uses[entry]
        return (-uses[0] if uses else NEVER,)
