"""How calls vary about what was expected of them: seen on a device, drawn from in a simulation.

The time of a layer is the larger of what two sides take, so that where these vary it is more than
the larger of what they take as a rule.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from edgerun.offload.estimates import Estimate, Estimates
from tools.bench.offload.profile import F64

RESOURCES = ("cpu", "device", "upload", "start", "command", "arrival")  # of ``Estimates``
SETTLED = 20  # calls after which estimates are no longer what was assumed


@dataclass(slots=True)
class Watched(Estimate):
    """An estimate that remembers what was seen of it in a call.

    Attributes:
        seen: seconds that were expected, and that it took.
    """

    seen: list[tuple[float, float]] = field(default_factory=list)

    def _learn(self, kinds: Collection[int], expected: float, seconds: float) -> None:
        """Learns and remembers."""
        if kinds:
            self.seen.append((expected, seconds))
        Estimate._learn(self, kinds, expected, seconds)

    def ratio(self) -> float:
        """What it took since it was asked last, by what was expected; NaN if it was not seen."""
        pairs, self.seen = np.array(self.seen).reshape(-1, 2), []
        expected, taken = pairs.sum(axis=0)
        return float(taken / expected) if len(pairs) else np.nan


def watch(estimates: Estimates) -> list[Watched]:
    """Lets all estimates remember; they have learned nothing yet."""
    for name in RESOURCES:
        assumed = getattr(estimates, name)
        setattr(estimates, name, Watched(assumed.fixed_s, assumed.row_s))
    return [getattr(estimates, name) for name in RESOURCES]


def drawn(ratios: F64, half: int) -> F64:
    """For each call of the second half two calls before it, drawn at random.

    One of those that uploaded nothing, and one of those that did: copies take a share of the
    processor and of the memory from both sides. Where there was none of a kind, one of all. Where
    nothing was seen of a resource in a call, the median over all calls before counts.

    Args:
        ratios: of all calls, by ``RESOURCES``, ``[calls, 6]``; NaN where nothing was seen.
        half: the first call of the second half.

    Returns:
        ``[calls - half, 2, 6]``.
    """
    rng, like = np.random.default_rng(0), []
    for call in range(half, len(ratios)):
        before = ratios[SETTLED:call] if call > SETTLED else ratios[:call]
        usual = [
            np.median(column[~np.isnan(column)]) if np.isfinite(column).any() else 1.0
            for column in before.T
        ]
        has_uploads = ~np.isnan(before[:, RESOURCES.index("upload")])
        for is_of_kind in (~has_uploads, has_uploads):
            kind = before[is_of_kind] if is_of_kind.any() else before
            row = kind[rng.integers(len(kind))]
            like.append(np.where(np.isnan(row), usual, row))
    return np.array(like).reshape(-1, 2, len(RESOURCES))
