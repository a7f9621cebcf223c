"""Which logits decide the next token, for back-ends that can leave out the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from edgerun.engine.sampling.base import TOP_K, History, ordered
from edgerun.engine.sampling.params import SamplingParams
from edgerun.state import Leading

MOST = 256  # leading tokens worth asking for

LeadingOf: TypeAlias = Callable[[History], Leading]


def make_leading(params: SamplingParams) -> LeadingOf | None:
    """Returns what tells the logits that a sampler with these parameters will look at.

    Greedy choice looks at the largest logit, top-k at the k largest, both besides those of tokens
    that penalties or biases move. None if the sampler needs them all.
    """
    active = [(order, moves) for order, make, moves in ordered() if make(params) is not None]
    greedy = params.temperature == 0
    if greedy and all(moves is not None for _, moves in active):
        count, moving = 1, [moves for _, moves in active]
    elif 0 < params.top_k <= MOST:
        count, moving = params.top_k, [moves for order, moves in active if order < TOP_K]
    else:
        return None
    known = [moves for moves in moving if moves is not None]
    if len(known) < len(moving):
        return None

    def leading(history: History) -> Leading:
        ids = {id_ for moves in known for id_ in moves(params, history)}
        return Leading(count, np.fromiter(sorted(ids), np.int64, len(ids)))

    return leading
