"""Corrects what a plan expected by what prompts really took, while a model is loaded.

A profile may be wrong: measured on a busy machine, or before the processor became hot. Each prompt
says how much longer or shorter it took than its terms, there or here; the median of the latest
counts, at most four times either way, and the break-even follows.
"""

from __future__ import annotations

import statistics
import sys
from collections import deque
from dataclasses import replace

from edgerun.backends.base import FEW_ROWS
from edgerun.plan.requests.breakeven import Split

FEWEST, LATEST = 3, 7  # prompts whose median counts
MOST = 4.0  # times slower or faster than expected that is believed
NEVER = sys.maxsize


class Factor:
    """How many times longer something takes than was expected."""

    def __init__(self) -> None:
        """Expects nothing else than what was said."""
        self._ratios: deque[float] = deque(maxlen=LATEST)

    def add(self, expected: float, measured: float) -> None:
        """Takes one measurement."""
        if expected > 0:
            self._ratios.append(measured / expected)

    @property
    def is_known(self) -> bool:
        """Whether there are enough measurements."""
        return len(self._ratios) >= FEWEST

    @property
    def value(self) -> float:
        """The median of the latest, within ``MOST``; 1 before there are some."""
        middle = statistics.median(self._ratios) if self.is_known else 1.0
        return min(max(middle, 1 / MOST), MOST)


class Correction:
    """Keeps the break-even of a split up to date.

    Attributes:
        from_rows: rows of a prompt without logits that go there, at least; ``NEVER`` once they are
            found to be slower there, for then nothing says any more that they are not.
    """

    def __init__(self, split: Split) -> None:
        """Begins with what was measured before."""
        self._split = split
        self._there, self._here = Factor(), Factor()
        self._stays_next = False
        self.from_rows = NEVER
        self._decide()

    def goes_there(self, rows: int) -> bool:
        """Whether so many rows without logits go there.

        Until it is known what prompts take here, every other one stays if that could change the
        decision: if all went there, a processor that was believed to be slower than it is would
        never be heard of.
        """
        if rows < self.from_rows:
            return False
        stays = self._stays_next and not self._here.is_known and self._may_lose(rows + 1)
        self._stays_next = not self._stays_next
        return not stays

    def went_there(self, rows: int, seconds: float) -> None:
        """Takes what a call there took, for rows without logits."""
        split = self._split
        expected = split.seconds_there(rows + 1) - split.launch_s - split.decode_s
        self._there.add(expected, seconds)
        self._decide()

    def stayed_here(self, rows: int, seconds: float) -> None:
        """Takes what a call here took."""
        self._here.add(self._split.seconds_here(rows), seconds)
        self._decide()

    def _may_lose(self, tokens: int) -> bool:
        slowest = self._there.value if self._there.is_known else MOST
        there, here = self._split.seconds_there(tokens), self._split.seconds_here(tokens)
        return there * slowest > here / MOST

    def _decide(self) -> None:
        there, here, split = self._there.value, self._here.value, self._split
        corrected = replace(
            split,
            there=split.there.scaled(there),
            here=split.here.scaled(here),
            handover_s=split.handover_s * there,
            decode_s=split.decode_s * here,
        )
        tokens = corrected.from_tokens()
        self.from_rows = NEVER if tokens is None else max(tokens - 1, FEW_ROWS + 1)
