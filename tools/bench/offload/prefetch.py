"""Uploads of experts that are likely to be wanted, while the link has nothing else to do.

The gates of the next layers are run on the hidden state that is there, and right only sometimes: a
guess is modelled by how many of the experts it finds. Nothing is evicted for a guess: what arrives
waits in slots of its own until its layer is computed, and is given up then if nobody wanted it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

Entry = tuple[int, int]  # layer, expert
ASSUMED_RECALL = (0.85, 0.75, 0.65)  # of the next layer and those after it; nobody measured it
LEAST_IDLE = 0.1  # share of the time; with less a wrong guess costs more than a right one brings
MEMORY = 0.9  # of that share, from a layer to the next


@dataclass
class Prefetcher:
    """What was guessed, and how far its uploads are.

    Attributes:
        recall: share of a layer's experts that a guess finds, for the next layer and those after.
        slots: for experts that wait.
        rng: draws guesses.
        uploaded_s: seconds of the link spent so far.
        guessed: experts, so far.
        right: of these, wanted in the end.
    """

    recall: Sequence[float]
    slots: int
    rng: np.random.Generator
    uploaded_s: float = 0.0
    guessed: int = 0
    right: int = 0
    _left_s: dict[Entry, float] = field(default_factory=dict)
    _idle: float = 1.0

    @property
    def is_on(self) -> bool:
        """Whether the link idles often enough."""
        return self._idle >= LEAST_IDLE

    def remaining(self, layer: int, expert: int, upload_s: float) -> float:
        """Seconds of upload that an expert still needs."""
        return self._left_s.get((layer, expert), upload_s)

    def take(self, layer: int, experts: Sequence[int]) -> set[int]:
        """Gives up a layer's guesses as it is computed; returns those that had arrived."""
        mine = {expert: left for (of, expert), left in self._left_s.items() if of == layer}
        for expert in mine:
            del self._left_s[layer, expert]
        self.guessed += len(mine)
        self.right += len(mine.keys() & set(experts))
        return {expert for expert, left in mine.items() if left <= 0}

    def guess(self, layer: int, distance: int, truth: Sequence[int], count: int) -> list[int]:
        """What the gate of a later layer would say now, as many experts as it will want."""
        right = [expert for expert in truth if self.rng.random() < self.recall[distance - 1]]
        others = np.setdiff1d(np.arange(count), truth)
        wrong = self.rng.permutation(others)[: len(truth) - len(right)]
        return [*right, *wrong.tolist()]

    def want(self, layer: int, experts: Sequence[int], upload_s: float) -> None:
        """Queues what is missing of a guess, as far as there are slots."""
        for expert in experts:
            if len(self._left_s) < self.slots and self.is_on:
                self._left_s.setdefault((layer, expert), upload_s)

    def idle(self, idle_s: float, all_s: float) -> None:
        """The link has nothing else to do for some of the time that a layer takes."""
        self._idle = MEMORY * self._idle + (1 - MEMORY) * idle_s / all_s
        for entry, left in self._left_s.items():
            spent = min(left, idle_s)
            self._left_s[entry] = left - spent
            self.uploaded_s += spent
            idle_s -= spent
