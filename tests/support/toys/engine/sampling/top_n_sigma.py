"""Top-n-sigma: keeps tokens whose logits stand out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from edgerun.engine.chooser.option import Number, option
from edgerun.engine.chooser.processor import StatelessProcessor

if TYPE_CHECKING:
    from edgerun.engine.chooser.candidates import Candidates


@dataclass(frozen=True)
class TopNSigma(StatelessProcessor):
    """Keeps logits at most n standard deviations below the highest (Tang et al. 2024)."""

    order: ClassVar[int] = 45
    keeps_likeliest: ClassVar[bool] = True
    top_n_sigma: float = option(0.0, Number(0, 100), "Keep what is so many deviations down.")

    def apply(self, candidates: Candidates) -> Candidates:
        logits = candidates.logits
        return candidates.keep(logits >= logits.max() - self.top_n_sigma * float(logits.std()))


PROCESSOR = TopNSigma
