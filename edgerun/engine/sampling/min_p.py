"""Min-p: keeps tokens that are likely compared with the likeliest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from edgerun.engine.chooser.option import Number, option
from edgerun.engine.chooser.processor import StatelessProcessor

if TYPE_CHECKING:
    from edgerun.engine.chooser.candidates import Candidates
    from edgerun.engine.chooser.chain import Chain


@dataclass(frozen=True)
class MinP(StatelessProcessor):
    """Keeps tokens with ``p >= min_p * max(p)``; in logits ``l >= max(l) + ln(min_p)``.

    Nguyen et al. 2024, "Turning up the heat".
    """

    order: ClassVar[int] = 60
    keeps_likeliest: ClassVar[bool] = True
    min_p: float = option(
        0.0, Number(0, 1), "Drop tokens less likely than this share of the likeliest; 0 keeps all."
    )

    def apply(self, candidates: Candidates) -> Candidates:
        least = float(candidates.logits.max()) + math.log(self.min_p)
        return candidates.keep(candidates.logits >= least)

    def join(self, chain: Chain) -> bool:
        """See ``JoiningFilter``."""
        return chain.min_p(math.log(self.min_p))


PROCESSOR = MinP
