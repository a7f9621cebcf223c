"""The contract of a policy: which of the experts in a cache leaves it first.

A policy sees every step of a layer, hits and misses alike, after it is told who left for it, and
ranks experts. What is in the cache, how large that is and what must not leave is the cache's
(``offload/cache.py``), be it memory in front of a disk or a GPU's in front of that. To add one,
write a file with a ``POLICY``, a class that needs no arguments, into this folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

Entry: TypeAlias = tuple[int, int]  # layer, expert
Rank: TypeAlias = tuple[float, ...]


class Policy(ABC):
    """Ranks experts by what it saw; the same steps lead to the same ranks."""

    def __init_subclass__(cls) -> None:
        """Takes back the order of a class whose ranks are replaced: it is not that of the new."""
        super().__init_subclass__()
        if "rank" in cls.__dict__ and "in_order" not in cls.__dict__:
            cls.in_order = Policy.in_order  # type: ignore[method-assign]

    @abstractmethod
    def use(self, layer: int, experts: Sequence[int], scores: Sequence[float]) -> None:
        """A layer needs some experts, each once; a score is the weight of an expert's result."""

    @abstractmethod
    def rank(self, entry: Entry) -> Rank:
        """How much an expert is worth that was used before; the lowest leaves first.

        Of equal ones the expert of the lower layer and number leaves.
        """

    def in_order(self) -> Iterable[Entry] | None:
        """All that were used and did not leave since, by rank; None if all have to be ranked.

        Whoever asks is done before the policy is told anything else.
        """
        return None

    def lowest(self, entries: Collection[Entry]) -> Entry:
        """Which of some experts of one layer leaves first; each was used before."""
        return min(entries, key=lambda entry: (self.rank(entry), entry))

    def leave(self, entry: Entry) -> None:  # noqa: B027 - few want to know
        """An expert left the cache."""
