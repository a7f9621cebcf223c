"""The tokens that may come next, and what processors do with them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.chooser.selection import last_of_fewest, leaders, scratch
from edgerun.errors import ChooserError


@dataclass(slots=True)
class Candidates:
    """Tokens still in play.

    Attributes:
        logits: float32 ``[n]``; a processor may change them in place.
        ids: id of each, int64 ``[n]`` increasing; None if ``logits`` covers the vocabulary.
    """

    logits: NDArray[np.float32]
    ids: NDArray[np.int64] | None = None

    def keep(self, mask: NDArray[np.bool_]) -> Candidates:
        """Returns the candidates where ``mask`` is true; order stays."""
        return self.take(np.flatnonzero(mask))

    def take(self, chosen: NDArray[np.int64]) -> Candidates:
        """Returns the candidates at ``chosen``, increasing positions."""
        return Candidates(self.logits[chosen], chosen if self.ids is None else self.ids[chosen])

    def places(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64] | slice]:
        """Returns where tokens are among the candidates.

        Args:
            ids: int64 ``[m]``, each once.

        Returns:
            Positions of those that are candidates, and which of ``ids`` these are.
        """
        if self.ids is None:
            return ids, slice(None)
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        inside = np.flatnonzero(self.ids[places] == ids)
        return places[inside], inside

    def keep_largest(self, count: int) -> Candidates:
        """Returns the ``count`` likeliest candidates, and all that are as likely as the last."""
        if count >= len(self.logits):
            return self
        chosen = leaders(self.logits, count)
        keys = self.logits[chosen]
        kth = len(keys) - count
        return self.take(chosen[keys >= np.partition(keys, kth)[kth]])

    def keep_mass(
        self, keys: NDArray[np.float32], weights: NDArray[np.float32], mass: float
    ) -> Candidates:
        """Returns the fewest candidates with the largest keys whose weights sum to ``mass``.

        All whose keys equal the last one's are returned too.

        Args:
            keys: what to order by, float32 ``[n]``; no NaN, the largest finite.
            weights: not negative, float32 ``[n]``.
            mass: in the units of the weights.
        """
        return self.keep(keys >= last_of_fewest(keys, weights, mass))

    def weights(self) -> NDArray[np.float32]:
        """Probabilities up to a common factor, float32 ``[n]``, largest 1; scratch memory.

        Raises:
            ChooserError: no logit is finite, or one is NaN.
        """
        weights: NDArray[np.float32] = scratch("weights", len(self.logits))
        np.subtract(self.logits, check_highest(self.logits.max()), out=weights)
        np.exp(weights, out=weights)
        return weights

    def likeliest(self) -> int:
        """Returns the id of the candidate with the highest logit, the first of several.

        Raises:
            ChooserError: no logit is finite, or one is NaN.
        """
        return self.id_at(likeliest(self.logits))

    def id_at(self, index: int) -> int:
        """Returns the id of a candidate."""
        return index if self.ids is None else int(self.ids[index])


def likeliest(logits: NDArray[np.float32]) -> int:
    """Returns the index of the highest logit, the first of several.

    Raises:
        ChooserError: no logit is finite, or one is NaN.
    """
    index = int(logits.argmax())  # the first NaN, if there is one
    check_highest(logits[index])
    return index


def check_highest(highest: np.float32) -> np.float32:
    """Returns the highest of some logits, as ``max`` finds it, which propagates NaN.

    Raises:
        ChooserError: it is NaN or infinite, or no token is possible.
    """
    if not math.isfinite(highest):
        raise ChooserError(
            f"no token can be chosen from logits whose maximum is {highest}: unless sampling "
            "options exclude all, check the weights, or run with EDGERUN_VALIDATE=1 to find the "
            "operation"
        )
    return highest
