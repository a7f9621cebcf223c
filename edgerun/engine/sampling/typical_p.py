"""Typical-p: keeps tokens about as surprising as the distribution expects."""

from __future__ import annotations

import numpy as np

from edgerun.engine.sampling.base import Candidates, History, Processor, processor
from edgerun.engine.sampling.params import SamplingParams


@processor(70)
def typical_p(params: SamplingParams) -> Processor | None:
    """Keeps the tokens nearest in surprise to the entropy that sum to at least p.

    Meister et al. 2023, "Locally typical sampling", equation 10; ties with the last token stay.
    """
    mass = params.typical_p
    if mass >= 1:
        return None

    def apply(candidates: Candidates, history: History) -> Candidates:
        weights = candidates.probabilities()
        possible = weights > 0
        surprise = -np.log(weights, where=possible, out=np.full_like(weights, -np.inf))
        entropy = np.sum(weights * surprise, where=possible, dtype=np.float64)
        distance = np.abs(surprise - np.float32(entropy))
        return candidates.keep(distance <= _farthest(distance, weights, mass))

    return apply


def _farthest(distance: np.ndarray, weights: np.ndarray, mass: float) -> float:
    """Returns the distance at which the nearest tokens reach the wanted mass."""
    size = len(distance)
    head = min(256, size)
    while True:
        near = np.argpartition(distance, head - 1)[:head] if head < size else np.arange(size)
        near = near[np.argsort(distance[near], kind="stable")]
        sums = np.cumsum(weights[near], dtype=np.float64)
        if sums[-1] >= mass or head == size:
            return float(distance[near[min(int(np.searchsorted(sums, mass)), head - 1)]])
        head = min(head * 16, size)
