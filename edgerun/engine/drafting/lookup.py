"""A text goes on as it did when it last had the same few ids: names, quotes, code, tables.

Prompt lookup (Saxena 2023). The more ids before were the same, the likelier the next one is: with
SmolLM2 135M's replies, rewriting, summing up and chatting, at temperatures of 0 and 0.7, 0.6 where
2 or 3 were, 0.8 where 4 to 7 were, 0.9, 0.95 and 0.99 from 8, 16 and 32 on.
"""

from __future__ import annotations

from edgerun.engine.drafting.base import Draft, Drafter

FEWEST = 2  # ids that have to be the same
MOST_COMPARED = 64
DOUBT = 1.6  # over twice as many ids for each doubling of those that were the same


class PromptLookup(Drafter):
    """Looks the last ids up among all before them."""

    def __init__(self) -> None:
        self._behind: dict[tuple[int, ...], int] = {}  # where each few ids end, the last time
        self._seen = FEWEST  # ends that are in there, and what lies before the first

    def draft(self, ids: list[int], most: int) -> Draft | None:
        """See ``Drafter``; what was said last, as often as it takes to come to ``most`` ids."""
        for place in range(self._seen, len(ids)):
            self._behind[tuple(ids[place - FEWEST : place])] = place
        self._seen = max(self._seen, len(ids))
        end = self._behind.get(tuple(ids[-FEWEST:]))
        if end is None:
            return None
        repeated = ids[end : end + most]
        times = -(-most // len(repeated))
        evidence = _same_before(ids, end).bit_length()
        return Draft((repeated * times)[:most], evidence, 1 - DOUBT / (1 << evidence))


def _same_before(ids: list[int], end: int) -> int:
    """How many ids before ``end`` are the last ones of all."""
    count, most = FEWEST, min(end, MOST_COMPARED)
    while count < most and ids[end - 1 - count] == ids[-1 - count]:
        count += 1
    return count


DRAFTER = PromptLookup
