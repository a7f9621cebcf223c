"""Typical-p: keeps tokens about as surprising as the distribution expects."""

from __future__ import annotations

import numpy as np

from edgerun.engine.sampling.base import (
    Candidates,
    History,
    Processor,
    last_of_fewest,
    processor,
    scratch,
)
from edgerun.engine.sampling.params import SamplingParams

# An impossible token counts as very surprising instead of infinitely.
LOWEST = np.log(np.finfo(np.float32).tiny)


@processor(70)
def typical_p(params: SamplingParams) -> Processor | None:
    """Keeps the tokens nearest in surprise to the entropy that sum to at least p.

    Meister et al. 2023, "Locally typical sampling", equation 10; ties with the last token stay.
    A token's surprise is ``ln(sum of weights) - l`` for logits l relative to the largest, and the
    entropy is its expectation: their difference is that of l and the expectation of l.
    """
    mass = params.typical_p
    if mass >= 1:
        return None

    def apply(candidates: Candidates, history: History) -> Candidates:
        size = len(candidates.logits)
        relative, products = scratch("relative", size), scratch("products", size)
        np.subtract(candidates.logits, candidates.logits.max(), out=relative)
        np.maximum(relative, LOWEST, out=relative)
        weights = np.exp(relative, out=scratch("weights", size))
        total = float(weights.sum(dtype=np.float64))
        np.multiply(weights, relative, out=products)
        expected = float(products.sum(dtype=np.float64)) / total
        nearness = np.subtract(relative, np.float32(expected), out=products)
        np.negative(np.abs(nearness, out=nearness), out=nearness)
        return candidates.keep(nearness >= last_of_fewest(nearness, weights, mass * total))

    return apply
