"""Stop texts, found across the borders of tokens and never emitted."""

from __future__ import annotations

import re
from collections.abc import Sequence


class StopText:
    """Passes text on and holds back what may be the start of a stop text."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Takes the texts at whose first occurrence to stop; with none, all text passes at once."""
        self._pattern = re.compile("|".join(map(re.escape, stops)) if stops else "(?!)")
        self._prefixes = {stop[:end] for stop in stops for end in range(1, len(stop))}
        self._longest = max(map(len, stops), default=1) - 1
        self._pending = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Returns the text that can be shown; after ``stopped`` becomes true there is none."""
        if self.stopped:
            return ""
        self._pending += text
        match = self._pattern.search(self._pending)
        if match:
            self.stopped = True
            released, self._pending = self._pending[: match.start()], ""
            return released
        hold = self._pending_length()
        released = self._pending[: len(self._pending) - hold]
        self._pending = self._pending[len(self._pending) - hold :]
        return released

    def finish(self) -> str:
        """Returns what was held back, which no stop text ends any more."""
        released, self._pending = self._pending, ""
        return released

    def _pending_length(self) -> int:
        for length in range(min(self._longest, len(self._pending)), 0, -1):
            if self._pending[-length:] in self._prefixes:
                return length
        return 0
