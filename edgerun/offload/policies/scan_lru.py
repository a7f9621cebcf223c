"""The expert that was not used for longest leaves first, but prompts change nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain

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

    def __init__(self) -> None:
        self._clock = 0
        self._experts = 1  # of a layer, as far as they were seen
        self._scanned: OrderedDict[Entry, int] = OrderedDict()  # and never used otherwise
        self._used: OrderedDict[Entry, int] = OrderedDict()

    def use(self, layer: int, experts: Sequence[int], scores: Sequence[float]) -> None:
        self._experts = max(self._experts, *(expert + 1 for expert in experts), 1)
        is_scan = len(experts) > SCAN_SHARE * self._experts
        for expert in experts:
            self._clock += 1
            entry = layer, expert
            if not is_scan:
                self._used[entry] = self._clock
                self._used.move_to_end(entry)
                self._scanned.pop(entry, None)
            elif entry not in self._used:
                self._scanned.setdefault(entry, self._clock)

    def rank(self, entry: Entry) -> Rank:
        return (1, self._used[entry]) if entry in self._used else (0, self._scanned[entry])

    def in_order(self) -> Iterable[Entry]:
        return chain(self._scanned, self._used)

    def leave(self, entry: Entry) -> None:
        del (self._used if entry in self._used else self._scanned)[entry]


POLICY = ScanResistant
