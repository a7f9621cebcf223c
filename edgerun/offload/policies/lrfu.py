"""The expert that was used least often leaves first, recent uses counting more.

Source: Lee et al. 2001, "LRFU: a spectrum of policies that subsumes the least recently used and
least frequently used policies": F(x) = (1/2) ** (lambda * x), with lambda 0.1, so that a use counts
half after 10 tokens.
"""

from __future__ import annotations

from edgerun.offload.policies.decaying import Decaying


class LeastRecentlyFrequentlyUsed(Decaying):
    """Between LRU, which a large ``decay`` comes to, and LFU, which is 0."""

    def __init__(self, decay: float = 0.1) -> None:
        super().__init__()
        self.decay = decay

    def gain(self, score: float) -> float:
        return 1.0


POLICY = LeastRecentlyFrequentlyUsed
