"""Temperature: sharpens or flattens the distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from edgerun.engine.chooser.option import Number, option
from edgerun.engine.chooser.processor import StatelessProcessor

if TYPE_CHECKING:
    from edgerun.engine.chooser.candidates import Candidates
    from edgerun.engine.chooser.chain import Chain


@dataclass(frozen=True)
class Temperature(StatelessProcessor):
    """Divides logits by the temperature; 0 takes the likeliest token, whatever else is done."""

    order: ClassVar[int] = 30
    keeps_likeliest: ClassVar[bool] = True
    temperature: float = option(
        1.0, Number(0, 100), "0 takes the likeliest token every time; 1 is the model's own choice."
    )

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def is_active(self) -> bool:
        return self.temperature not in (0, 1)

    def apply(self, candidates: Candidates) -> Candidates:
        import numpy as np

        candidates.logits -= candidates.logits.max()
        with np.errstate(over="ignore"):
            candidates.logits /= np.float32(self._divisor)
        return candidates

    def join(self, chain: Chain) -> bool:
        """See ``JoiningFilter``."""
        return chain.temperature(self._divisor)

    @property
    def _divisor(self) -> float:
        """A tinier temperature would overflow float32; this one already decides every non-tie."""
        return max(self.temperature, 1e-6)


PROCESSOR = Temperature
