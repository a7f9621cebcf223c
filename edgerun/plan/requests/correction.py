"""Corrects what a plan expected by what prompts really took, while a model is loaded.

A profile may be wrong: measured on a busy machine, or before the processor became hot. Each prompt
says how much longer or shorter it took than its terms, there or here; the median of the latest
counts, at most four times either way, and the break-even follows.

Of a place to which nothing goes nothing is heard. So after some prompts one that would be faster
there, if the place were four times as fast as is believed, is tried; a few at most, and no more
once two of them took longer there.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from edgerun.backends.base import FEW_ROWS
from edgerun.plan.plans import NEVER
from edgerun.plan.requests.breakeven import Split

FEWEST, LATEST = 3, 7  # prompts whose median counts
MOST = 4.0  # times slower or faster than expected that is believed
TRIED_AFTER = 6  # prompts that stayed
MOST_LOST = 2  # trials that took longer, as the first does that warms a device up
MOST_TRIED = 8  # a network that is not compiled yet leaves the prompt to a substitute


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
        from_rows: rows of a prompt without logits that go there, at least, but for trials;
            ``NEVER`` where they are slower there.
    """

    def __init__(self, split: Split) -> None:
        """Begins with what was measured before."""
        self._split = split
        self._there, self._here = Factor(), Factor()
        self._stays_next = False
        self._stayed = self._tried = self._lost = 0
        self.from_rows = NEVER
        self._decide()

    def goes_there(self, rows: int) -> bool:
        """Whether so many rows without logits go there.

        Until it is known what prompts take here, every other one stays if that could change the
        decision: if all went there, a processor that was believed to be slower than it is would
        never be heard of.
        """
        if rows < self.from_rows:
            is_trial = self._is_worth_trying(rows)
            self._tried += is_trial
            return is_trial
        stays = self._stays_next and not self._here.is_known and self._may_lose(rows + 1)
        self._stays_next = not self._stays_next
        return not stays

    def went_there(self, rows: int, seconds: float) -> None:
        """Takes what a call there took, for rows without logits."""
        split = self._split
        expected = split.seconds_there(rows + 1) - split.launch_s - split.decode_s
        whole = seconds + split.decode_s * self._here.value
        self._lost += rows < self.from_rows and whole > self._seconds_here(rows + 1)
        self._there.add(expected, seconds)
        self._decide()

    def stayed_here(self, rows: int, seconds: float) -> None:
        """Takes what a call here took."""
        self._stayed += 1
        self._here.add(self._split.seconds_here(rows), seconds)
        self._decide()

    def _is_worth_trying(self, rows: int) -> bool:
        """Whether a prompt that is believed to be slower there goes there nevertheless."""
        is_due = self._stayed >= TRIED_AFTER and not self._there.is_known
        if not is_due or self._tried >= MOST_TRIED or self._lost >= MOST_LOST or rows <= FEW_ROWS:
            return False
        split = self._split
        fixed = split.launch_s + split.decode_s * self._here.value
        moving = split.seconds_there(rows + 1) - split.launch_s - split.decode_s
        return fixed + moving / MOST < self._seconds_here(rows + 1)

    def _seconds_here(self, tokens: int) -> float:
        return self._split.seconds_here(tokens) * self._here.value

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


class LateCorrection:
    """The same for a plan in which nothing goes elsewhere; what might is weighed when it matters.

    Most models that are loaded see few prompts, so nothing is weighed before some have stayed.
    """

    def __init__(self, weigh: Callable[[], Split | None]) -> None:
        """Takes what finds the place that might be better than is believed; None if none might."""
        self._weigh = weigh
        self._stayed: list[tuple[int, float]] = []
        self._correction: Correction | None = None

    def goes_there(self, rows: int) -> bool:
        """See ``Correction``."""
        return self._correction is not None and self._correction.goes_there(rows)

    def went_there(self, rows: int, seconds: float) -> None:
        """See ``Correction``."""
        if self._correction is not None:
            self._correction.went_there(rows, seconds)

    def stayed_here(self, rows: int, seconds: float) -> None:
        """See ``Correction``."""
        if self._correction is not None:
            self._correction.stayed_here(rows, seconds)
        elif len(self._stayed) < TRIED_AFTER:
            self._stayed.append((rows, seconds))
            if len(self._stayed) == TRIED_AFTER:
                self._begin()

    def _begin(self) -> None:
        split = self._weigh()
        if split is not None:
            self._correction = Correction(split)
            for rows, seconds in self._stayed:
                self._correction.stayed_here(rows, seconds)
