"""Min-p: keeps tokens that are likely compared with the likeliest."""

from __future__ import annotations

import numpy as np

from edgerun.engine.sampling.base import Candidates, History, Processor, processor
from edgerun.engine.sampling.params import SamplingParams


@processor(60, keeps_likeliest=True)
def min_p(params: SamplingParams) -> Processor | None:
    """Keeps tokens with ``p >= min_p * max(p)``; in logits ``l >= max(l) + ln(min_p)``."""
    if params.min_p == 0:
        return None
    distance = np.log(np.float64(params.min_p))

    def apply(candidates: Candidates, history: History) -> Candidates:
        return candidates.keep(candidates.logits >= candidates.logits.max() + distance)

    return apply
