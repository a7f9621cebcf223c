"""The entry that has been idle for longest goes first."""

from __future__ import annotations

from edgerun.state.policies.base import Policy


class LeastRecentlyUsed(Policy):
    """Costs the same whatever the number of entries."""

    def __init__(self) -> None:
        self._idle: dict[int, None] = {}  # in the order in which they were left

    def __len__(self) -> int:
        return len(self._idle)

    def use(self, entry: int) -> None:
        self._idle.pop(entry, None)

    def leave(self, entry: int) -> None:
        self._idle.pop(entry, None)
        self._idle[entry] = None

    def forget(self, entry: int) -> None:
        self._idle.pop(entry, None)

    def victim(self) -> int | None:
        return next(iter(self._idle), None)


POLICY = LeastRecentlyUsed
