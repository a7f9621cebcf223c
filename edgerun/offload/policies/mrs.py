"""The expert with the smallest average score leaves first, recent ones counting more.

Source: Zhong et al. 2025 (HybriMoE), "minus recent score": S = alpha * TopP(s) + (1 - alpha) * S
for all experts of a layer, a step at a time, TopP keeping the highest scores. Here those are the
scores of the experts that were chosen: a trace has no others, while the paper takes twice as many.
Its alpha is not known to us; with ours a score counts half after 7 tokens.
"""

from __future__ import annotations

from math import log2

from edgerun.offload.policies.decaying import Decaying

LEAST_SCORE = 2.0**-24  # the smallest that float16 has, for those that it rounds to 0


class MinusRecentScore(Decaying):
    """An average is a decaying sum but for the factor alpha, which all have in common."""

    def __init__(self, alpha: float = 0.1) -> None:
        super().__init__()
        self.decay = -log2(1 - alpha)

    def gain(self, score: float) -> float:
        return max(score, LEAST_SCORE)


POLICY = MinusRecentScore
