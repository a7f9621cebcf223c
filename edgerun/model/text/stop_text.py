"""Stop texts, found across the borders of tokens and never emitted."""

from __future__ import annotations

from array import array
from collections.abc import Sequence


class StopText:
    """Passes text on and holds back what may be the start of a stop text.

    The stop text that is complete first ends the text, before its first character; of those that
    are complete at the same character it is the one that begins first. So the end is the same
    however the text is cut into pieces.

    Attributes:
        ended_by: the stop text that ended it, or None.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Takes the texts at whose first occurrence to stop; with none, all text passes at once."""
        longest_first = sorted(dict.fromkeys(stops), key=len, reverse=True)
        self._searches = [_Search(stop) for stop in longest_first]
        self._held = ("", 0)  # what is held back: a stop text, and how much of its start
        self.ended_by: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop text ended it."""
        return self.ended_by is not None

    def push(self, text: str) -> str:
        """Returns the text that can be shown; after ``stopped`` becomes true there is none."""
        if self.stopped:
            return ""
        limit, ended, ended_by = len(text), None, None
        for search in self._searches:
            end = search.read(text, limit)
            if end is not None:  # only one that is complete before is better: shorter ones follow
                limit, ended, ended_by = end - 1, end - len(search.stop), search.stop
        stop, held = self._held
        if ended is None:
            self._held = max((each.held for each in self._searches), key=_length, default=("", 0))
            shown = held + len(text) - _length(self._held)
        else:
            self.ended_by, self._held = ended_by, ("", 0)
            shown = held + ended
        return stop[: min(shown, held)] + text[: max(shown - held, 0)]

    def finish(self) -> str:
        """Returns what was held back, which no stop text ends any more."""
        (stop, held), self._held = self._held, ("", 0)
        return stop[:held]


def _length(held: tuple[str, int]) -> int:
    return held[1]


class _Search:
    """Searches pieces of a text for a stop text (Knuth, Morris and Pratt 1977).

    Attributes:
        stop: the stop text.
        held: the same, and how much of its start the text ends with.
    """

    def __init__(self, stop: str) -> None:
        self.stop, self.held = stop, (stop, 0)
        # By length of a start of the stop text, how much of its own start it ends with, but not
        # the whole of it. Longer starts are looked at when a text has them, which few do.
        self._borders = array("L", (0, 0))

    def read(self, text: str, limit: int) -> int | None:
        """Reads at most ``limit`` characters more; how many when the stop text is complete."""
        stop, matched = self.stop, self.held[1]
        for place in range(limit):
            while matched and stop[matched] != text[place]:
                matched = self._border(matched)
            matched += stop[matched] == text[place]
            if matched == len(stop):
                return place + 1
        self.held = stop, matched
        return None

    def _border(self, length: int) -> int:
        stop, borders = self.stop, self._borders
        for end in range(len(borders) - 1, length):
            border = borders[end]
            while border and stop[border] != stop[end]:
                border = borders[border]
            borders.append(border + (stop[border] == stop[end]))
        return borders[length]
