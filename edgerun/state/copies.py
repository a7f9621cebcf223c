"""Copies of states of fixed size, under which a sequence can begin anew."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgerun.state.memory import Memory

K = TypeVar("K", bound=Hashable)
Arrays: TypeAlias = Sequence[NDArray[np.float32]]  # of all layers, one after the other


class Copies(Generic[K]):
    """A few copies, each under a key; the one that was not used for longest goes first.

    Nobody has to have them: where there is no memory for one more, others go, or it is not made.
    """

    def __init__(self, most: int, nbytes: int, memory: Memory) -> None:
        """Has room for so many copies of so many bytes."""
        self._most, self._nbytes, self._memory = most, nbytes, memory
        self._copies: dict[K, tuple[int, Arrays]] = {}

    def __len__(self) -> int:
        return len(self._copies)

    def add(self, key: K, length: int, arrays: Arrays) -> None:
        """Copies arrays, the state after so many tokens, if there is memory."""
        _, copy = self._copies.pop(key, (0, None))
        if copy is None and len(self._copies) >= self._most:
            copy = self._take_oldest()
        while copy is None and not self._memory.take(self._nbytes):
            if not self._copies:
                return
            self._take_oldest()
        if copy is None:
            copy = [np.empty_like(array) for array in arrays]
        for target, source in zip(copy, arrays, strict=True):
            target[...] = source
        self._copies[key] = length, copy

    def longest(self, keys: Iterable[K], limit: int) -> int:
        """The most tokens, up to a limit, of a copy under one of some keys; 0 if there is none."""
        lengths = (self._copies[key][0] for key in keys if key in self._copies)
        return max((length for length in lengths if length <= limit), default=0)

    def find(self, keys: Iterable[K], length: int) -> Arrays:
        """The state after so many tokens under one of some keys; nothing if there is none."""
        for key in keys:
            if key in self._copies and self._copies[key][0] == length:
                self._copies[key] = copy = self._copies.pop(key)
                return copy[1]
        return ()

    def keys(self) -> list[K]:
        """Under which there is a copy."""
        return list(self._copies)

    def forget(self, longer: int = -1) -> None:
        """Drops copies of more tokens than some."""
        self._copies = {key: copy for key, copy in self._copies.items() if copy[0] <= longer}

    def _take_oldest(self) -> Arrays:
        return self._copies.pop(next(iter(self._copies)))[1]
