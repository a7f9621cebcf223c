"""A session: the ids whose keys and values stand in the cache, kept from turn to turn."""

from __future__ import annotations

from collections.abc import Sequence

from edgerun.errors import InputError
from edgerun.state import KVCache


class Session:
    """One sequence of a KV cache.

    ``ids`` is the truth: the cache may hold more rows after an interrupted call, never fewer, and
    ``rewind`` brings both together. A session that is forgotten gives its sequence back.

    Any thread may begin, clear and close; ``check``, ``rewind`` and ``appended`` are for the thread
    that holds the cache's lock.

    Attributes:
        cache: the cache.
        sequence: number of the sequence in it.
        ids: ids whose keys and values are cached, oldest first.
        is_open: whether the sequence is still its own.
    """

    def __init__(self, cache: KVCache, source: Session | None = None, length: int = 0) -> None:
        """Takes a sequence of the cache; see ``fork`` for one that begins as another session.

        Raises:
            InputError: all sequences are in use.
        """
        self.cache = cache
        self.is_open = True
        self._turn = 0
        self.ids: list[int] = [] if source is None else source.ids[:length]
        self.sequence: int
        self.sequence = (
            cache.open(self) if source is None else cache.fork(source.sequence, length, self)[0]
        )

    def fork(self, length: int) -> Session:
        """Opens a session that begins with the first ``length`` ids of this one.

        Raises:
            InputError: all sequences are in use.
        """
        return Session(self.cache, self, length)

    def begin(self) -> int:
        """Starts a generation; one that is still under way can no longer go on.

        Raises:
            InputError: the session was closed.
        """
        return self.cache.lock.run(self._begin)

    def _begin(self) -> int:
        self._check_open()
        self._turn += 1
        return self._turn

    def check(self, turn: int) -> None:
        """Makes sure that no other generation has begun since ``begin`` returned ``turn``.

        Raises:
            InputError: one has, or the session was closed.
        """
        self._check_open()
        if turn != self._turn:
            raise InputError(
                "another generation has begun on this session: finish one stream before the next, "
                "or open a session for each"
            )

    def rewind(self, prompt: Sequence[int]) -> int:
        """Keeps the longest prefix of ``prompt`` that is cached, short of its last token.

        The last token always runs, because its logits are wanted.

        Returns:
            Number of tokens kept.
        """
        shared = min(shared_prefix(self.ids, prompt), len(prompt) - 1)
        kept = self.cache.rewind(self.sequence, shared)
        del self.ids[kept:]
        return kept

    def appended(self, ids: Sequence[int]) -> None:
        """Records that the keys and values of ``ids`` were written behind the others."""
        self.cache.commit(self.sequence, len(self.ids) + len(ids))
        self.ids += ids

    def clear(self) -> None:
        """Forgets everything; a generation under way can no longer go on.

        Raises:
            InputError: the session was closed; its sequence may be another one's.
        """
        self.cache.lock.run(self._clear)

    def _clear(self) -> None:
        self._check_open()
        self._turn += 1
        self.ids.clear()
        self.cache.rewind(self.sequence, 0)

    def close(self) -> None:
        """Gives the sequence back; calling it twice is allowed."""
        self.is_open = False

    def _check_open(self) -> None:
        if not self.is_open:
            raise InputError("this session is closed, or its model: open another one")


def shared_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix of two id sequences."""
    limit = min(len(left), len(right))
    for index in range(limit):
        if left[index] != right[index]:
            return index
    return limit
