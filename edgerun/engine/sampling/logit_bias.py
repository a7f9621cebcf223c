"""Logit bias: adds a number to the logits of single ids."""

from __future__ import annotations

import numpy as np

from edgerun.engine.sampling.base import Candidates, History, Processor, processor
from edgerun.engine.sampling.params import SamplingParams
from edgerun.errors import SamplingError


@processor(10)
def logit_bias(params: SamplingParams) -> Processor | None:
    """Adds ``params.logit_bias``; runs before any filter, so candidates cover the vocabulary."""
    if not params.logit_bias:
        return None
    ids = np.array(list(params.logit_bias), np.int64)
    values = np.array(list(params.logit_bias.values()), np.float32)

    def apply(candidates: Candidates, history: History) -> Candidates:
        if ids.max() >= len(candidates.logits):
            raise SamplingError(
                f"logit_bias names id {ids.max()}; the vocabulary ends at "
                f"{len(candidates.logits) - 1}"
            )
        candidates.logits[ids] += values
        return candidates

    return apply
