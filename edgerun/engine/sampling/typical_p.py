"""Typical-p: keeps tokens about as surprising as the distribution expects."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.sampling.base import HEAD, Candidates, History, Processor, place, processor
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
        # An impossible token counts as very surprising instead of infinitely.
        surprise = -np.log(np.maximum(weights, np.finfo(np.float32).tiny))
        entropy = np.sum(weights * surprise, dtype=np.float64)
        distance = np.abs(surprise - np.float32(entropy))
        return candidates.keep(distance <= _farthest(distance, weights, mass))

    return apply


def _farthest(distance: NDArray[np.float32], weights: NDArray[np.float32], mass: float) -> float:
    """Returns the distance at which the nearest tokens reach the wanted mass."""
    size = len(distance)
    for head in (HEAD, 8 * HEAD, size):
        near = np.argpartition(distance, head)[:head] if head < size else np.arange(size)
        if head >= size or weights[near].sum(dtype=np.float64) > mass:
            break
    near = near[np.argsort(distance[near])]
    return float(distance[near[place(weights[near], np.nextafter(mass, 0))]])
