"""Which page holds which prefix: pages are found again by what their tokens are.

The key of a page is a hash over the key of the page before it and the ids of its own tokens, so it
stands for all ids from the beginning (as in vLLM's prefix caching). The last page of a sequence
that has ended is not full; it is found where the ids after its predecessor begin alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from edgerun.state.policies.base import Policy

Key = bytes
ROOT: Key = b""


def chain(before: Key, ids: Sequence[int] | NDArray[np.int64]) -> Key:
    """The key of a page whose tokens are ``ids``, behind the page with the key ``before``."""
    tokens = np.asarray(ids, "<i8").tobytes()
    return blake2b(before + tokens, digest_size=16).digest()


class PageIndex:
    """Pages of a pool by their key, and those that nobody uses.

    A page that is lost to an interruption between two lines is in none of both and is found by
    counting; see ``PagePool``.
    """

    def __init__(self, policy: Policy) -> None:
        """Begins without pages; ``policy`` says which goes first of those that nobody uses."""
        self._pages: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}
        self._policy = policy

    @property
    def unused(self) -> int:
        """How many pages are kept for nothing but to be found."""
        return len(self._policy)

    def find(self, key: Key) -> int | None:
        """The page with a key."""
        return self._pages.get(key)

    def add(self, key: Key, page: int) -> None:
        """Gives a page its key; the first page of a key keeps it."""
        if key not in self._pages and page not in self._keys:
            self._keys[page] = key
            self._pages[key] = page

    def forget(self, page: int) -> None:
        """Takes its key from a page, because its content changes."""
        self._policy.forget(page)
        key = self._keys.pop(page, None)
        if key is not None:
            self._pages.pop(key, None)

    def retain(self, page: int) -> bool:
        """Keeps a page that nobody uses any more; False if it has no key to be found by."""
        if page not in self._keys:
            return False
        self._policy.leave(page)
        return True

    def take(self, page: int) -> None:
        """Somebody uses a page."""
        self._policy.use(page)

    def evict(self) -> int | None:
        """A page that nobody uses, which loses its key; None if all are in use."""
        page = self._policy.victim()
        if page is not None:
            self.forget(page)
        return page

    def pages(self) -> list[int]:
        """All pages that have a key."""
        return list(self._keys)
