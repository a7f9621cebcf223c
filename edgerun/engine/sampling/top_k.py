"""Top-k: keeps the k likeliest tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from edgerun.engine.chooser.option import Whole, option
from edgerun.engine.chooser.processor import StatelessProcessor

if TYPE_CHECKING:
    from edgerun.engine.chooser.candidates import Candidates
    from edgerun.engine.chooser.chain import Chain


@dataclass(frozen=True)
class TopK(StatelessProcessor):
    """Keeps every token at least as likely as the k-th; ties with it stay (as in HF)."""

    order: ClassVar[int] = 40
    keeps_likeliest: ClassVar[bool] = True
    top_k: int = option(0, Whole(0, 2**31 - 1), "Keep the k likeliest tokens; 0 keeps all.")

    def apply(self, candidates: Candidates) -> Candidates:
        return candidates.keep_largest(self.top_k)

    def join(self, chain: Chain) -> bool:
        """See ``JoiningFilter``."""
        return chain.top_k(self.top_k)


PROCESSOR = TopK
