"""Temperature: sharpens or flattens the distribution."""

from __future__ import annotations

import numpy as np

from edgerun.engine.sampling.base import Candidates, History, Processor, processor
from edgerun.engine.sampling.params import SamplingParams


@processor(30, keeps_likeliest=True)
def temperature(params: SamplingParams) -> Processor | None:
    """Divides logits by the temperature; 0 is handled by the sampler as greedy."""
    if params.temperature in (0, 1):
        return None
    # A tiny temperature would overflow float32; this one already decides every non-tie.
    divisor = np.float32(max(params.temperature, 1e-6))

    def apply(candidates: Candidates, history: History) -> Candidates:
        candidates.logits -= candidates.logits.max()
        with np.errstate(over="ignore"):
            candidates.logits /= divisor
        return candidates

    return apply
