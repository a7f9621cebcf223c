"""From how many tokens on a prompt is better computed elsewhere: a sum of measured terms.

``launch + ceil(n / C) * t_C + n * h + t_decode < (n + 1) / r``: what the first call takes longer,
the calls that n tokens need, what it costs to hand their keys and values over, and the last token,
whose logits are computed where replies are; on the other side all n + 1 where replies are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

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
        """For so many tokens, in the largest calls that there are."""
        if self.is_padded:
            return sum(self.calls[rows] for rows in cut(tokens, tuple(self.calls)))
        most = max(self.calls)
        whole, rest = divmod(tokens, most)
        return whole * self.calls[most] + (self._call_seconds(rest) if rest else 0.0)

    def scaled(self, factor: float) -> Side:
        """The same, so many times slower."""
        return replace(self, calls={rows: each * factor for rows, each in self.calls.items()})

    def _call_seconds(self, rows: int) -> float:
        sizes = sorted(self.calls)
        below = max((size for size in sizes if size <= rows), default=sizes[0])
        above = min(size for size in sizes if size >= rows)
        if above == below:
            return self.calls[above]
        share = (rows - below) / (above - below)
        return (1 - share) * self.calls[below] + share * self.calls[above]


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
        computed = self.there.seconds(tokens - 1) + (tokens - 1) * self.handover_s
        return self.launch_s + computed + self.decode_s

    def seconds_here(self, tokens: int) -> float:
        """For a prompt of so many tokens, all of them here."""
        return self.here.seconds(tokens)

    def from_tokens(self) -> int | None:
        """The least number from which on all prompts are faster there; None if there is none.

        Calls are padded, so a prompt that just needs one more may lose where a shorter one won.
        """
        loses = (
            tokens
            for tokens in range(self.longest, 0, -1)
            if self.seconds_there(tokens) >= self.seconds_here(tokens)
        )
        last = next(loses, 0)
        return last + 1 if last < self.longest else None

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
