"""Whether experts that the next layer seems to need are worth reading before it asks for them.

While a layer computes nothing is missing and the link to the disk is idle, for a while. A read that
begins then and is right comes earlier by what is left of the while, or saves the wait for it
altogether. One that is wrong delays what the next layer asks for by what it takes longer than the
while. So it pays if

    right * while > (1 - right) * (read - while)    or, shorter,    while > (1 - right) * read

and where the link is never idle nothing does but what is as good as certain. All three are moving
averages of what was measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from edgerun.machine.average import Average

REACH = 2  # layers that guesses are made ahead
ALL = 0
NO_LAYER = -2  # none comes after it
ENOUGH = 16  # guesses, before they are trusted
ENOUGH_LAYERS = 2  # likewise, where each is of a whole layer
MOST_WASTED = 0.15  # of what is read
WASTED_AT_FIRST = 8
LEAST_RIGHT = 0.3
LONGEST_REST = 4  # reads that a rest counts as, at most: the whole program may have paused
TRIAL_RUNS = 16  # one of so many looks ahead where that does not pay


@dataclass(slots=True)
class Guesses:
    """How good guesses were so far.

    Attributes:
        needed: experts that layers needed for which there was a guess.
        foreseen: how many of them were in it.
        wished: reads that began before anybody asked.
        wasted: those of them that the layer did not need.
    """

    needed: int = 0
    foreseen: int = 0
    wished: int = 0
    wasted: int = 0


class Prefetch:
    """Measures and decides; see above. Times are seconds, of any clock.

    Attributes:
        guesses: what came of them.
        at_once: reads that the link takes before it is busy.
    """

    def __init__(self, at_once: int = 1, now: Callable[[], float] | None = None) -> None:
        """Knows nothing yet, and so tries.

        Args:
            at_once: reads that the link takes before it is busy.
            now: the clock.
        """
        self.guesses, self.at_once = Guesses(), at_once
        self._now = now or time.monotonic
        self._idle, self._read = Average(), Average()
        self._right = [Average() for _ in range(1 + REACH)]  # of guesses, by ``ahead``
        self._idle_since = 0.0
        self._layer, self._runs, self._reads = NO_LAYER, 0, 0

    def begin_run(self) -> bool:
        """Whether guesses are to be made in the run that begins."""
        self._runs += 1
        return self.looks(1)

    def looks(self, ahead: int) -> bool:
        """Whether to make guesses so many layers ahead in the run under way.

        ``ALL`` stands for the guess that nearly all experts are needed, however far ahead.
        """
        is_new = not self._is_known(ahead)
        is_trial = self._runs % TRIAL_RUNS == 0
        return is_new or is_trial or self._is_worth(self._idle.value, ahead)

    def pays(self, ahead: int) -> bool:
        """Whether a wish is to be read now, with nothing missing and the link idle.

        However long it has been idle, for how much longer nobody knows.
        """
        return self._is_known(ahead) and self._is_worth(self._idle.value, ahead)

    def _is_known(self, ahead: int) -> bool:
        """Whether so many guesses were made that they tell how good the next will be."""
        return self._right[ahead].count >= (ENOUGH_LAYERS if ahead == ALL else ENOUGH)

    def _is_worth(self, idle_s: float, ahead: int) -> bool:
        """Whether to read where the link will be idle for so long."""
        if self.guesses.wasted > WASTED_AT_FIRST + MOST_WASTED * self._reads:
            return False
        right = self._right[ahead].value
        return right >= LEAST_RIGHT and idle_s > (1 - right) * self._read.value

    def note_post(self, layer: int, seconds: float) -> None:
        """A layer has said at some time what it needs."""
        if layer == self._layer + 1:  # between runs is no time to foresee anything
            rest_s = max(0.0, seconds - self._idle_since)
            most_s = LONGEST_REST * self.at_once * self._read.value
            self._idle.add(min(rest_s, most_s) if self._read.count else rest_s)
        self._layer, self._idle_since = layer, seconds

    def note_arrival(self, seconds: float, *, is_wish: bool) -> None:
        """A read has ended that took so long."""
        self._reads += 1
        if is_wish or not self._read.count:  # others share the link
            self._read.add(seconds)
        if not is_wish:
            self._idle_since = self._now()

    def note_recall(self, needed: int, foreseen: int) -> None:
        """A layer needed so many experts, of which the last guess of a router had some."""
        self.guesses.needed += needed
        self.guesses.foreseen += foreseen

    def note_guess(self, ahead: int, absent: int, right: int) -> None:
        """A layer came for which a guess was made.

        Args:
            ahead: layers before, or ``ALL``.
            absent: experts in the guess that were not in memory then.
            right: those of them that the layer needed.
        """
        if absent:
            self._right[ahead].add(right / absent)
