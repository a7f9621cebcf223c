"""From how many tokens on a prompt is better computed elsewhere: a sum of measured terms.

``launch + ceil(n / C) * t_C + n * h + t_decode < (n + 1) / r``: what the first call takes longer,
the calls that n tokens need, what it costs to hand their keys and values over, and the last token,
whose logits are computed where replies are; on the other side all n + 1 where replies are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgerun.machine.devices import cut

if TYPE_CHECKING:
    from edgerun.plan.requests.forecast import Forecast


@dataclass(frozen=True, slots=True)
class Side:
    """How long one of two places computes.

    Attributes:
        names: of its back-ends.
        calls: seconds of a call by its rows.
        is_padded: no call has other numbers of rows; else seconds between them are in proportion.
    """

    names: tuple[str, ...]
    calls: Mapping[int, float]
    is_padded: bool = False

    def seconds(self, tokens: int) -> float:
        """For so many tokens, in the largest calls that there are, and the rest as ``cut`` does."""
        return float(self.each(np.array(tokens)))

    def each(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """``seconds`` of many numbers of tokens, in an array of any shape."""
        sizes = np.array(sorted(self.calls))
        seconds = np.array([self.calls[size] for size in sizes.tolist()])
        whole, rest = np.divmod(tokens, sizes[-1])
        if self.is_padded:
            rests, which = np.unique(rest, return_inverse=True)
            padded = np.array([self._padded_seconds(rows) for rows in rests.tolist()])
            last = padded[which].reshape(rest.shape)
        else:
            last = np.interp(rest, sizes, seconds)
        return np.asarray(whole * seconds[-1] + np.where(rest > 0, last, 0.0))

    def _padded_seconds(self, rows: int) -> float:
        return sum(self.calls[size] for size in cut(rows, tuple(sorted(self.calls))))

    def scaled(self, factor: float) -> Side:
        """The same, so many times slower."""
        return replace(self, calls={rows: each * factor for rows, each in self.calls.items()})


@dataclass(frozen=True, slots=True)
class Split:
    """Prompts there, replies and the last token of a prompt here, against everything here.

    Attributes:
        there: where prompts would go.
        here: where replies are computed.
        launch_s: what the first call there takes longer.
        handover_s: for each token, to hand its keys and values over.
        decode_s: the last token.
        longest: tokens of a call at most, so no more go there at a time.
        basis: what the terms of ``there`` stand on, with its date.
        forecast: of prompts that need several calls; None where nothing is placed.
    """

    there: Side
    here: Side
    launch_s: float = 0.0
    handover_s: float = 0.0
    decode_s: float = 0.0
    longest: int = 0
    basis: str = ""
    forecast: Forecast | None = field(default=None, repr=False, compare=False)

    def seconds_there(self, tokens: int) -> float:
        """For a prompt of so many tokens, the last one here."""
        return float(self._each_there(np.array(tokens)))

    def seconds_here(self, tokens: int) -> float:
        """For a prompt of so many tokens, all of them here."""
        return self.here.seconds(tokens)

    def from_tokens(self) -> int | None:
        """The least number from which on all prompts are faster there; None if there is none.

        Calls are padded, so a prompt that just needs one more may lose where a shorter one won.
        """
        tokens = np.arange(1, self.longest + 1)
        loses = self._each_there(tokens) >= self.here.each(tokens)
        least = int(tokens[loses].max(initial=0)) + 1
        return least if least <= self.longest else None

    def _each_there(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        moving = self.there.each(tokens - 1) + (tokens - 1) * self.handover_s
        return np.asarray(self.launch_s + moving + self.decode_s)

    def terms(self) -> dict[str, Any]:
        """All of it by the names of the formula, for programs to read; seconds and tokens."""
        tokens = self.longest
        return {
            "there": list(self.there.names),
            "here": list(self.here.names),
            "basis": self.basis,
            "launch_s": self.launch_s,
            "C": list(self.there.calls),
            "t_C_s": list(self.there.calls.values()),
            "is_padded": self.there.is_padded,
            "h_s": self.handover_s,
            "t_decode_s": self.decode_s,
            "r_tokens_per_s": tokens / self.seconds_here(tokens),
            "longest": tokens,
            "seconds_there": self.seconds_there(tokens),
            "seconds_here": self.seconds_here(tokens),
            "from_tokens": self.from_tokens(),
        }
