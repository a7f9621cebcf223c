"""How likely a model held a token, and which it held likeliest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.chooser.candidates import Candidates
from edgerun.engine.chooser.selection import leaders

# In place of minus infinity, which JSON cannot write, for what a model itself makes impossible.
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithms of the probabilities that a model gave tokens in one place of a reply.

    They are the model's own: of its logits as they are, before penalties, biases, temperature, what
    keeps likely tokens and what a grammar rules out. All are finite.

    Attributes:
        id: the token that was chosen.
        logprob: of that token.
        top: ``(id, logprob)`` of the likeliest tokens, the likeliest first and of equal ones the
            lower id; the chosen one is among them only if it is one of these.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprob(logits: NDArray[np.float32], id_: int, count: int) -> TokenLogprob:
    """Looks at the logits from which a token was chosen.

    Exponentials are float32, relative to the largest, and their sum is float64: a logarithm is
    right to 1e-6. The bits are the same whatever else a call computes, as those of logits are.

    Args:
        logits: of a row, float32 ``[vocab]``; left unchanged.
        id_: the token.
        count: how many of the likeliest to name, 0 or more; all if there are no more.

    Raises:
        ChooserError: no logit is finite, or one is NaN.
    """
    weights = Candidates(logits).weights()
    total = float(logits.max()) + math.log(weights.sum(dtype=np.float64))
    top: tuple[tuple[int, float], ...] = ()
    if count:
        ids = leaders(logits, count)  # increasing, so that a stable sort keeps equal ones so
        ids = ids[np.argsort(-logits[ids], kind="stable")[:count]]
        logprobs = np.maximum(logits[ids].astype(np.float64) - total, LOWEST)
        top = tuple(zip(ids.tolist(), logprobs.tolist(), strict=True))
    return TokenLogprob(id_, max(float(logits[id_]) - total, LOWEST), top)
