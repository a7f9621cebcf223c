"""The entry that was used least often goes first, and an old favourite fades.

What many conversations begin with survives a flood of prompts that come once. Entries count from
the age of the cache on, which is the priority of the last one that went (LFU with dynamic aging:
Arlitt et al., "Evaluating content management techniques for Web proxy caches", 2000), so that
nothing stays for ever because it was wanted long ago.
"""

from __future__ import annotations

from edgerun.state.policies.base import Policy


class LeastFrequentlyUsed(Policy):
    """Looks at all idle entries for a victim: thousands of pages cost less than computing one."""

    def __init__(self) -> None:
        self._idle: dict[int, None] = {}  # in the order in which they were left
        self._uses: dict[int, int] = {}
        self._priorities: dict[int, int] = {}
        self._age = 0

    def __len__(self) -> int:
        return len(self._idle)

    def use(self, entry: int) -> None:
        self._idle.pop(entry, None)
        self._count(entry)

    def leave(self, entry: int) -> None:
        if entry not in self._priorities:
            self._count(entry)
        self._idle.pop(entry, None)
        self._idle[entry] = None

    def forget(self, entry: int) -> None:
        self._idle.pop(entry, None)
        self._uses.pop(entry, None)
        self._priorities.pop(entry, None)

    def victim(self) -> int | None:
        entry = min(self._idle, key=self._priorities.__getitem__, default=None)
        if entry is not None:
            self._age = self._priorities[entry]
        return entry

    def _count(self, entry: int) -> None:
        self._uses[entry] = self._uses.get(entry, 0) + 1
        self._priorities[entry] = self._age + self._uses[entry]


POLICY = LeastFrequentlyUsed
