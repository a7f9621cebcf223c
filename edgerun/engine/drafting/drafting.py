"""Decides whether a reply is drafted, and how far: by what came of drafts, and what calls take."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from edgerun.engine.drafting.base import Drafter
from edgerun.engine.drafting.pace import MOST_ROWS, Pace
from edgerun.engine.sequence import Sequence, shared_prefix
from edgerun.errors import InputError
from edgerun.values import as_int, shown

logger = logging.getLogger(__name__)

REMEMBERED = 0.9  # of what was counted, how much is left with every draft: texts change
LARGEST_ID = (1 << 31) - 1  # of a batch
PRIOR_WEIGHT = 2.0  # what a drafter says itself counts as much as so many ids


class Guesses:
    """Drafts of one reply, and what came of them.

    For each number of evidence there are ids that were right, and ids that were looked at: those
    behind the first wrong one were not.
    """

    def __init__(self, drafter: Drafter) -> None:
        """Takes what makes them."""
        self._drafter = drafter
        self._counts: dict[int, tuple[float, float]] = {}
        self._last: tuple[int, list[int], int] | None = None  # where, ids, evidence

    def next(self, ids: list[int], most: int, best: Callable[[int, float], int]) -> tuple[int, ...]:
        """What to compute behind the ids, at most so many; often nothing.

        Args:
            ids: of the reply so far.
            most: at least 1.
            best: says of how many ids a draft should be; see ``Pace``.

        Raises:
            InputError: the drafter says what is no id.
        """
        self._learn(ids)
        draft = self._drafter.draft(ids, most)
        if draft is None:
            return ()
        right, looked_at = self._counts.get(draft.evidence, (0.0, 0.0))
        likelihood = (right + draft.likelihood * PRIOR_WEIGHT) / (looked_at + PRIOR_WEIGHT)
        offered = draft.ids[:most]  # behind that there are no pages
        drafted = [_id_of(each) for each in offered[: best(len(offered), likelihood)]]
        self._last = len(ids), drafted, draft.evidence
        return tuple(drafted)

    def _learn(self, ids: list[int]) -> None:
        """Counts what the last draft had right; where it did not pay, the past counts less."""
        if self._last is None:
            return
        (start, drafted, evidence), self._last = self._last, None
        right = shared_prefix(drafted, ids[start:])
        counts = right, min(right + 1, len(drafted))
        before = self._counts.get(evidence, (0.0, 0.0))
        self._counts[evidence] = (
            before[0] * REMEMBERED + counts[0],
            before[1] * REMEMBERED + counts[1],
        )


def _id_of(value: object) -> int:
    """An id that a drafter says; whether the vocabulary has it is seen when it is computed."""
    number = as_int(value)
    if number is None or not 0 <= number <= LARGEST_ID:
        raise InputError(f"{shown(value)} is no id")
    return number


class Drafting:
    """Drafts replies of one model, until a drafter fails: no reply does because of it.

    Attributes:
        pace: of its calls.
        takes_back: whether rows of a call can be taken back; else all of a call counts, or nothing.
    """

    def __init__(self, make: Callable[[], Drafter], *, takes_back: bool = True) -> None:
        """Takes what makes a drafter for each reply."""
        self._make: Callable[[], Drafter] | None = make
        self.pace, self.takes_back = Pace(), takes_back

    def draft(self, sequence: Sequence, rows: int, room: int) -> None:
        """Drafts what a sequence goes on with, if it is a reply.

        Args:
            sequence: alone in the next call.
            rows: of that call.
            room: ids for which the call and its pages have room besides.
        """
        # The last id that a reply may have is chosen, and never computed.
        last = sequence.ending.length - len(sequence.ids) - 1
        most = min(room, MOST_ROWS - rows, last)
        # Others may leave it rows of a call for a part of what it has to compute again.
        is_whole = sequence.is_reply and rows == sequence.pending
        if self._make is None or most < 1 or not is_whole:
            return
        best = partial(self.pace.best, rows=rows, takes_back=self.takes_back)
        try:
            if sequence.guesses is None:
                sequence.guesses = Guesses(self._make())
            sequence.drafted = sequence.guesses.next(sequence.ids, most, best)
        except Exception as error:  # of a drafter that anybody may have written
            self._make = None
            logger.warning(
                "replies are not drafted any more, for the drafter failed: %s: %s",
                type(error).__name__,
                error,
            )
