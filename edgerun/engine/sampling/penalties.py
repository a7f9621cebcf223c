"""Repetition, presence and frequency penalties on tokens that were seen before."""

from __future__ import annotations

from collections import Counter

import numpy as np

from edgerun.engine.sampling.base import Candidates, History, Processor, processor
from edgerun.engine.sampling.params import SamplingParams


@processor(20)
def penalties(params: SamplingParams) -> Processor | None:
    """Repetition counts prompt and reply (CTRL, section 4.1); the others the reply alone.

    Presence and frequency are those of the OpenAI API:
    ``logit -= count * frequency_penalty + (count > 0) * presence_penalty``.
    """
    # A tiny penalty would overflow float32; this one already outweighs any logit.
    repetition = np.float32(max(params.repetition_penalty, 1e-6))
    presence, frequency = params.presence_penalty, params.frequency_penalty
    if repetition == 1 and presence == 0 and frequency == 0:
        return None

    def apply(candidates: Candidates, history: History) -> Candidates:
        logits = candidates.logits
        if repetition != 1:
            seen = np.asarray(history.ids, np.int64)  # one id often, each time the same value
            values = logits[seen]
            logits[seen] = np.where(values > 0, values / repetition, values * repetition)
        if presence or frequency:
            counted = Counter(history.ids[history.prompt_tokens :])
            counts = np.fromiter(counted.values(), np.float64, len(counted))
            seen = np.fromiter(counted, np.int64, len(counted))
            logits[seen] -= (counts * frequency + presence).astype(np.float32)
        return candidates

    return apply
