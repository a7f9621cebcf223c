"""Top-k: keeps the k likeliest tokens."""

from __future__ import annotations

import numpy as np

from edgerun.engine.sampling.base import Candidates, History, Processor, processor
from edgerun.engine.sampling.params import SamplingParams


@processor(40)
def top_k(params: SamplingParams) -> Processor | None:
    """Keeps every token at least as likely as the k-th; ties with it stay (as in HF)."""
    count = params.top_k
    if count == 0:
        return None

    def apply(candidates: Candidates, history: History) -> Candidates:
        size = len(candidates.logits)
        if count >= size:
            return candidates
        threshold = np.partition(candidates.logits, size - count)[size - count]
        return candidates.keep(candidates.logits >= threshold)

    return apply
