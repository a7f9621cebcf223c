"""Sessions for generations that belong to no chat."""

from __future__ import annotations

from collections import deque

from edgerun.engine.session import Session
from edgerun.state import KVCache


class SessionPool:
    """Keeps one session between generations, and opens others while that one is in use.

    What is kept is the session used last, so that a prompt that begins as the one before it reuses
    its keys and values. No lock is needed, and a finaliser may give back: both ends are single
    operations on a deque, which drops a second session, and a dropped one closes itself.
    """

    def __init__(self, cache: KVCache) -> None:
        """Opens the first session.

        Raises:
            InputError: all sequences of the cache are in use.
        """
        self._cache = cache
        self._idle = deque([Session(cache)], maxlen=1)

    def take(self) -> Session:
        """Returns a session that nobody else has until it is given back.

        Raises:
            InputError: all sequences of the cache are in use.
        """
        try:
            return self._idle.pop()
        except IndexError:
            return Session(self._cache)

    def give_back(self, session: Session) -> None:
        """Keeps a session for the next generation."""
        self._idle.append(session)

    def close(self) -> None:
        """Closes the session that is not in use."""
        self._idle.clear()
