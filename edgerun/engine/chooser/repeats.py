"""Which tokens would go on with something that was said before, and for how long it is repeated."""

from __future__ import annotations

from edgerun.engine.chooser.vocabulary import Vocabulary

KEY_TOKENS = 8  # by which earlier places are looked up; what must be longer is compared


class Repeats:
    """Finds where the end of a sequence occurred before.

    A place is a position whose token followed some ids. Places whose token and the ids before it
    are the same form a chain, the latest first, as in compressors of the LZ77 family. So a token
    is appended and taken back in constant time, and what it takes to look is the number of places
    with the same ids before them, of which those of a token are left out once one is as long as
    matters.
    """

    def __init__(self, shortest: int) -> None:
        """Begins empty; matches of fewer than ``shortest`` ids, at least 1, are not looked for."""
        self.ids: list[int] = []
        self._shortest = shortest
        self._key_tokens = min(shortest, KEY_TOKENS)
        self._followers: dict[tuple[int, ...], list[int]] = {}  # of some ids, each once
        self._latest: dict[tuple[int, ...], int] = {}  # by ids and follower
        self._earlier: list[int] = []  # of each place the one before it in its chain, or -1

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

    def lengths(self, longest: int, window: int) -> dict[int, int]:
        """Returns how many ids before each possible next one are those at the end, at the most.

        Args:
            longest: matches of more ids count as this.
            window: the last ids, inside which a match must lie.

        Returns:
            By id the longest match; ids without one of at least ``shortest`` are left out.
        """
        if longest < self._shortest or len(self.ids) < self._key_tokens:
            return {}
        key, start = self._key(), max(0, len(self.ids) - window)
        lengths: dict[int, int] = {}
        for id_ in self._followers.get(key, ()):
            best, place = self._shortest - 1, self._latest[(*key, id_)]
            # Earlier places have less before them in the window; behind the last one comes -1.
            while (most := min(longest, place - start)) > best:
                best = max(best, self._match(place, most))
                place = self._earlier[place]
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


class Breakers:
    """Texts over which no repetition goes, wherever tokens begin and end in them."""

    def __init__(self, texts: tuple[str, ...], vocabulary: Vocabulary | None) -> None:
        """Without a vocabulary there may be no texts."""
        self._texts = [text.encode() for text in texts]
        self._reach = max(map(len, self._texts), default=1) - 1
        self._vocabulary = vocabulary
        self._breaks: dict[int, bool] = {}  # whether a token does, whatever is before it

    def end_in(self, id_: int, tail: bytes) -> bool:
        """Whether a text ends within a token behind a ``tail``; control tokens break, too."""
        breaks = self._breaks.get(id_)
        if breaks is None:
            breaks = self._breaks[id_] = self._is_control(id_) or self._ends(b"", id_)
        return breaks or (self._reach > 0 and self._ends(tail, id_))

    def _ends(self, tail: bytes, id_: int) -> bool:
        """Whether a text ends in a token behind some bytes."""
        data = tail + self._bytes(id_)
        return any(data.find(text, max(0, len(tail) - len(text) + 1)) >= 0 for text in self._texts)

    def tail(self, before: list[int]) -> bytes:
        """The last bytes of some tokens: at least those of a text that may end in the next one."""
        tail = b""
        for id_ in reversed(before):
            if len(tail) >= self._reach:
                break
            tail = self._bytes(id_) + tail
        return tail

    def _is_control(self, id_: int) -> bool:
        return self._vocabulary is not None and id_ in self._vocabulary.control_ids

    def _bytes(self, id_: int) -> bytes:
        return b"" if self._vocabulary is None else self._vocabulary.token_bytes(id_)
