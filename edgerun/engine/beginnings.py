"""With which pages sequences begin: two that begin alike can have these in common."""

from __future__ import annotations

import numpy as np

from edgerun.state.prefixes import ROOT, Key, chain


class Beginning:
    """Keys of the pages that a list of ids fills, each of which stands for all ids up to its end.

    Every id is read once, however often it is asked: the list may become longer, and no more. So
    sequences that wait are compared in each step, and the length of their prompts is no matter.
    """

    def __init__(self, ids: list[int]) -> None:
        """Reads nothing yet."""
        self._ids = ids
        self._keys: list[Key] = []
        self._page_tokens = 0

    def keys(self, page_tokens: int) -> list[Key]:
        """Keys of the full pages there are by now."""
        if page_tokens != self._page_tokens:
            self._keys, self._page_tokens = [], page_tokens
        keys, pages = self._keys, len(self._ids) // page_tokens
        if len(keys) < pages:
            start = len(keys) * page_tokens
            ids = np.asarray(self._ids[start : pages * page_tokens], np.int64)
            for begin in range(0, len(ids), page_tokens):
                keys.append(chain(keys[-1] if keys else ROOT, ids[begin : begin + page_tokens]))
        return keys


def shared_pages(left: list[Key], right: list[Key], most: int) -> int:
    """How many pages two beginnings have in common, up to ``most``."""
    low, high = 0, min(most, len(left), len(right))
    if not high or left[0] != right[0]:
        return 0
    if left[high - 1] == right[high - 1]:
        return high
    while high - low > 1:  # the first ``low`` are the same, the first ``high`` are not
        middle = (low + high) // 2
        if left[middle - 1] == right[middle - 1]:
            low = middle
        else:
            high = middle
    return low
