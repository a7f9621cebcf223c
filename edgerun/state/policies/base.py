"""The contract of an eviction policy: which of the entries that nobody uses leaves a cache first.

It is told what happens to entries, which are whole numbers, and asked when room is needed. It
never decides whether an entry is idle. To add one, write a file with a ``POLICY``, a class without
arguments, into this folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class Policy(ABC):
    """Orders the idle entries of one cache.

    Ctrl-C may come between any two lines: an entry that is told to it twice, or never, must do no
    harm but that it goes sooner or later than others.
    """

    @abstractmethod
    def __len__(self) -> int:
        """How many entries are idle."""

    @abstractmethod
    def use(self, entry: int) -> None:
        """Somebody uses an entry, which is not idle from now on."""

    @abstractmethod
    def leave(self, entry: int) -> None:
        """Nobody uses an entry any more: it is idle."""

    @abstractmethod
    def forget(self, entry: int) -> None:
        """An entry is gone, and so is what was known of it."""

    @abstractmethod
    def victim(self) -> int | None:
        """The idle entry that goes first; None if there is none."""
