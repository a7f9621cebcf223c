"""Top-k: keeps the k likeliest tokens."""

from __future__ import annotations

import numpy as np

from edgerun.engine.sampling.base import (
    Candidates,
    History,
    Processor,
    processor,
)
from edgerun.engine.sampling.leaders import leaders
from edgerun.engine.sampling.params import SamplingParams


@processor(40, keeps_likeliest=True)
def top_k(params: SamplingParams) -> Processor | None:
    """Keeps every token at least as likely as the k-th; ties with it stay (as in HF)."""
    count = params.top_k
    if count == 0:
        return None

    def apply(candidates: Candidates, history: History) -> Candidates:
        size = len(candidates.logits)
        if count >= size:
            return candidates
        chosen = leaders(candidates.logits, count)
        keys = candidates.logits[chosen]
        threshold = np.partition(keys, len(keys) - count)[len(keys) - count]
        return candidates.take(chosen[keys >= threshold])

    return apply
