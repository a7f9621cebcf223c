"""What was said before, in a time that does not depend on how much of it was said before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

KEY_TOKENS = 8  # shorter matches than that, or than any that matters, are not remembered
ROOM = 64  # ids that there is room for at first
FEW = 32  # of which the longest is sought without sorting
NOTHING = -1  # behind the first id, looking back: no id


class Matches:
    """Finds where the end of a sequence occurred before, as ``Repeats`` does.

    Every place, whose token followed some ids, lies a distance before the end, and the ids before
    it may match those at the end. When an id is appended, the matches at the places whose token it
    is are longer by one and all others are over, while distances stay what they are. So a match is
    remembered by where it began, and a token takes one pass over the ids, in NumPy, however much
    of them is repeated, and a few steps for each match.
    """

    def __init__(self, shortest: int, window: int, ids: Sequence[int] = ()) -> None:
        """Reads the first ids.

        Args:
            shortest: matches of fewer ids, which are at least 1, are not looked for.
            window: the last ids, inside which a match must lie.
            ids: the first.
        """
        self._shortest, self._window = shortest, window
        self._key_tokens = min(shortest, KEY_TOKENS)
        self._count = len(ids)
        self._ids = _latest_first(np.asarray(ids, np.int32)[::-1])
        self._begins = np.empty(len(self._ids), np.int32)  # by distance, less 1
        self._matches: NDArray[np.intp] | None = None  # distances less 1 that have one
        self._find()

    def __len__(self) -> int:
        """How many ids there are."""
        return self._count

    def append(self, id_: int) -> None:
        """Adds an id."""
        count, before = self._count, self._before
        if self._matches is not None:
            places = (before[: self._window] == id_).nonzero()[0]
            for more in range(self._key_tokens - 1):
                if not len(places):
                    break
                places = places[before[more + 1 :][places] == before[more]]
            if len(places):
                last = self._key_tokens - 1
                was_none = before[last + 1 :][places] != before[last]
                self._begins[places[was_none]] = count - last
            self._matches = places
        if count + 1 == len(self._ids):
            self._ids = _latest_first(before[:-1])
            self._begins = np.concatenate([self._begins, np.empty_like(self._begins)])
        self._ids[-count - 2] = id_
        self._count += 1

    def pop(self) -> None:
        """Takes the last id back; what matched before it is found anew when it is asked for."""
        self._count -= 1
        self._matches = None

    def lengths(self, longest: int) -> dict[int, int]:
        """Returns how many ids before each possible next one are those at the end, at the most.

        Args:
            longest: matches of more ids count as this.

        Returns:
            By id the longest match; ids without one of at least ``shortest`` are left out.
        """
        count, shortest = self._count, self._shortest
        if min(longest, count) < shortest:
            return {}
        if self._matches is None:
            self._find()
        assert self._matches is not None
        places = self._matches
        lengths = count - self._begins[places]
        if self._key_tokens < shortest:
            is_long = lengths >= shortest
            places, lengths = places[is_long], lengths[is_long]
        if not len(places):
            return {}
        lengths = np.minimum(lengths, longest)
        if self._window < count:  # of which the place and what is behind it take so much
            lengths = np.minimum(lengths, self._window - 1 - places)
        best: dict[int, int] = {}
        for id_, length in _pairs(self._before[places], lengths):
            if length > best.get(id_, shortest - 1):
                best[id_] = length
        return best

    @property
    def _before(self) -> NDArray[np.int32]:
        """The ids, the latest first, and ``NOTHING`` behind them."""
        return self._ids[-1 - self._count :]

    def _find(self) -> None:
        """Finds all matches: the Z function (Gusfield 1997, 1.4) of the ids, the latest first.

        A match inside another one is as long as it is at its beginning, unless it goes on to the
        other's end; only there is compared, so no id is passed twice.
        """
        count, before = self._count, self._before
        ids = before.tolist()
        reach = min(count, self._window + 1)
        places = ((before[1:reach] == before[0]).nonzero()[0] + 1).tolist() if count else []
        lengths = [0] * (count + 1)
        start = end = 0
        for place in places:
            length = min(lengths[place - start], end - place) if place < end else 0
            if place + length >= end:
                while ids[length] == ids[place + length]:  # NOTHING ends it
                    length += 1
                start, end = place, place + length
            lengths[place] = length
        all_lengths = np.array(lengths, np.int32)
        self._matches = (all_lengths[1:] >= self._key_tokens).nonzero()[0]
        self._begins[self._matches] = count - all_lengths[1:][self._matches]


def _latest_first(ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """Ids, the latest first, with room for more before them and ``NOTHING`` behind them."""
    room = np.empty(max(ROOM, 2 * len(ids)) + 1, np.int32)
    room[-1] = NOTHING
    room[len(room) - 1 - len(ids) : -1] = ids
    return room


def _pairs(ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> list[tuple[int, int]]:
    """Ids and lengths; of many, no more than the longest of every id."""
    if len(ids) > FEW:
        both = ids.astype(np.int64) << 32 | lengths
        both.sort()
        ids = (both >> 32).astype(np.int32)
        last = np.append(ids[1:] != ids[:-1], True).nonzero()[0]
        ids, lengths = ids[last], (both[last] & 0xFFFFFFFF).astype(np.int32)
    return list(zip(ids.tolist(), lengths.tolist(), strict=True))
