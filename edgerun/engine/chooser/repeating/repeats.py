"""Which tokens would go on with something that was said before, and for how long it is repeated."""

from __future__ import annotations

from collections.abc import Iterable

KEY_TOKENS = 8  # by which earlier places are looked up; what must be longer is compared
MOST_COMPARED = 512  # ids and places for one token: about what ``Matches`` takes


class Repeats:
    """Finds where the end of a sequence occurred before.

    A place is a position whose token followed some ids. Places whose token and the ids before it
    are the same form a chain, the latest first, as in compressors of the LZ77 family. So a token
    is appended and taken back in constant time, and what it takes to look is the number of places
    with the same ids before them, of which those of a token are left out once one is as long as
    matters. That is little in nearly all texts, and may be any number: then it says so.
    """

    def __init__(self, shortest: int, window: int, ids: Iterable[int] = ()) -> None:
        """Reads the first ids.

        Args:
            shortest: matches of fewer ids, which are at least 1, are not looked for.
            window: the last ids, inside which a match must lie.
            ids: the first.
        """
        self.ids: list[int] = []
        self._shortest, self._window = shortest, window
        self._key_tokens = min(shortest, KEY_TOKENS)
        self._followers: dict[tuple[int, ...], list[int]] = {}  # of some ids, each once
        self._latest: dict[tuple[int, ...], int] = {}  # by ids and follower
        self._earlier: list[int] = []  # of each place the one before it in its chain, or -1
        for id_ in ids:
            self.append(id_)

    def __len__(self) -> int:
        """How many ids there are."""
        return len(self.ids)

    def append(self, id_: int) -> None:
        """Adds an id."""
        place, earlier = len(self.ids), -1
        if place >= self._key_tokens:
            key = self._key()
            earlier = self._latest.get((*key, id_), -1)
            self._latest[(*key, id_)] = place
            if earlier < 0:
                self._followers.setdefault(key, []).append(id_)
        self._earlier.append(earlier)
        self.ids.append(id_)

    def pop(self) -> None:
        """Takes the last id back; all is as it was before it."""
        id_, earlier = self.ids.pop(), self._earlier.pop()
        if len(self.ids) < self._key_tokens:
            return
        key = self._key()
        if earlier >= 0:
            self._latest[(*key, id_)] = earlier
            return
        del self._latest[(*key, id_)]
        self._followers[key].pop()  # the last that was new is the first to go
        if not self._followers[key]:
            del self._followers[key]

    def lengths(self, longest: int) -> dict[int, int] | None:
        """Returns how many ids before each possible next one are those at the end, at the most.

        Args:
            longest: matches of more ids count as this.

        Returns:
            By id the longest match; ids without one of at least ``shortest`` are left out. None if
            it takes too long to say: ask ``Matches``.
        """
        if longest < self._shortest or len(self.ids) < self._key_tokens:
            return {}
        key, start = self._key(), max(0, len(self.ids) - self._window)
        lengths: dict[int, int] = {}
        compared = 0
        for id_ in self._followers.get(key, ()):
            best, place = self._shortest - 1, self._latest[(*key, id_)]
            compared += 1
            # Earlier places have less before them in the window; behind the last one comes -1.
            while (most := min(longest, place - start)) > best:
                match = self._match(place, min(most, MOST_COMPARED + 1))
                compared += match
                best, place = max(best, match), self._earlier[place]
                if compared > MOST_COMPARED:
                    return None
            if best >= self._shortest:
                lengths[id_] = best
        return lengths

    def _key(self) -> tuple[int, ...]:
        return tuple(self.ids[len(self.ids) - self._key_tokens :])

    def _match(self, place: int, most: int) -> int:
        """How many ids before a place of the chain are those at the end, up to ``most``."""
        ids, end, length = self.ids, len(self.ids), self._key_tokens
        while length < most and ids[place - 1 - length] == ids[end - 1 - length]:
            length += 1
        return length
