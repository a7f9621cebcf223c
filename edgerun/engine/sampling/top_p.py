"""Top-p: keeps the nucleus of the distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from edgerun.engine.chooser.option import Number, option
from edgerun.engine.chooser.processor import StatelessProcessor

if TYPE_CHECKING:
    from edgerun.engine.chooser.candidates import Candidates
    from edgerun.engine.chooser.chain import Chain


@dataclass(frozen=True)
class TopP(StatelessProcessor):
    """Keeps the fewest likeliest tokens that sum to at least p, and ties with the last of them.

    Holtzman et al. 2020, "The curious case of neural text degeneration".
    """

    order: ClassVar[int] = 50
    keeps_likeliest: ClassVar[bool] = True
    top_p: float = option(
        1.0,
        Number(0, 1, above_low=True),
        "Keep the fewest tokens whose probabilities sum to at least this; 1 keeps all.",
    )

    def apply(self, candidates: Candidates) -> Candidates:
        weights = candidates.weights()
        mass = self.top_p * float(weights.sum(dtype="f8"))
        return candidates.keep_mass(candidates.logits, weights, mass)

    def join(self, chain: Chain) -> bool:
        """See ``JoiningFilter``."""
        return chain.top_p(self.top_p)


PROCESSOR = TopP
