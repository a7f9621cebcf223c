"""Typical-p: keeps tokens about as surprising as the distribution expects."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from edgerun.engine.chooser.option import Number, option
from edgerun.engine.chooser.processor import StatelessProcessor

if TYPE_CHECKING:
    from edgerun.engine.chooser.candidates import Candidates

# An impossible token counts as very surprising instead of infinitely: ln of the tiniest float32.
LOWEST = -126 * math.log(2)


@dataclass(frozen=True)
class TypicalP(StatelessProcessor):
    """Keeps the tokens nearest in surprise to the entropy that sum to at least p.

    Meister et al. 2023, "Locally typical sampling", equation 10; ties with the last token stay.
    A token's surprise is ``ln(sum of weights) - l`` for logits l relative to the largest, and the
    entropy is its expectation: their difference is that of l and the expectation of l.
    """

    order: ClassVar[int] = 70
    typical_p: float = option(
        1.0,
        Number(0, 1, above_low=True),
        """Keep the tokens whose surprise is nearest to the entropy and that sum to at least this;
        1 keeps all.""",
    )

    def apply(self, candidates: Candidates) -> Candidates:
        import numpy as np

        from edgerun.engine.chooser.selection import scratch

        size = len(candidates.logits)
        relative, products = scratch("relative", size), scratch("products", size)
        np.subtract(candidates.logits, candidates.logits.max(), out=relative)
        np.maximum(relative, LOWEST, out=relative)
        weights = np.exp(relative, out=scratch("weights", size))
        np.multiply(weights, relative, out=products)
        total = float(weights.sum(dtype=np.float64))
        expected = float(products.sum(dtype=np.float64)) / total
        nearness = np.subtract(relative, np.float32(expected), out=products)
        np.negative(np.abs(nearness, out=nearness), out=nearness)
        return candidates.keep_mass(nearness, weights, self.typical_p * total)


PROCESSOR = TypicalP
