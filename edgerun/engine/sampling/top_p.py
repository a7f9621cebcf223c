"""Top-p: keeps the nucleus of the distribution."""

from __future__ import annotations

from edgerun.engine.sampling.base import (
    Candidates,
    History,
    Processor,
    processor,
    smallest_nucleus,
)
from edgerun.engine.sampling.params import SamplingParams


@processor(50)
def top_p(params: SamplingParams) -> Processor | None:
    """Keeps the fewest likeliest tokens that sum to at least p, and ties with the last of them."""
    mass = params.top_p
    if mass >= 1:
        return None

    def apply(candidates: Candidates, history: History) -> Candidates:
        weights = candidates.probabilities()
        return candidates.keep(weights >= smallest_nucleus(weights, mass))

    return apply
