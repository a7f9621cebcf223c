"""The expert that was not used for longest leaves first, but prompts change nothing."""

from __future__ import annotations

from collections.abc import Sequence

from edgerun.offload.policies.base import Entry, Policy, Rank

SCAN_SHARE = 0.5  # of a layer's experts; a step that needs more is one of a prompt


class ScanResistant(Policy):
    """Least recently used, where steps that need most of a layer do not count as uses.

    A prompt needs nearly every expert of every layer once. By plain LRU all that was in memory
    leaves before the prompt comes to it, so everything is read, and tokens that follow find the
    experts of the last layers alone. Here what a prompt brings leaves for what it brings next, and
    what was there before stays.

    The idea of keeping scans out is that of Johnson and Shasha 1994 (2Q), section 1.
    """

    is_timeless = True

    def __init__(self) -> None:
        self._clock = 0
        self._experts = 1  # of a layer, as far as they were seen
        self._used: dict[Entry, Rank] = {}

    def use(self, layer: int, experts: Sequence[int], scores: Sequence[float]) -> None:
        self._experts = max(self._experts, *(expert + 1 for expert in experts), 1)
        is_scan = len(experts) > SCAN_SHARE * self._experts
        for expert in experts:
            self._clock += 1
            if not is_scan:
                self._used[layer, expert] = (1, self._clock)
            else:
                self._used.setdefault((layer, expert), (0, self._clock))

    def rank(self, entry: Entry) -> Rank:
        return self._used[entry]

    def leave(self, entry: Entry) -> None:
        del self._used[entry]


POLICY = ScanResistant
