"""Top-p: keeps the nucleus of the distribution."""

from __future__ import annotations

import numpy as np

from edgerun.engine.sampling.base import (
    Candidates,
    History,
    Processor,
    last_of_fewest,
    processor,
)
from edgerun.engine.sampling.params import SamplingParams


@processor(50, keeps_likeliest=True)
def top_p(params: SamplingParams) -> Processor | None:
    """Keeps the fewest likeliest tokens that sum to at least p, and ties with the last of them."""
    mass = params.top_p
    if mass >= 1:
        return None

    def apply(candidates: Candidates, history: History) -> Candidates:
        weights = candidates.weights()
        wanted = mass * float(weights.sum(dtype=np.float64))
        return candidates.keep(
            candidates.logits >= last_of_fewest(candidates.logits, weights, wanted)
        )

    return apply
