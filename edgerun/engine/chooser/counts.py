"""How often ids occur."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Counts:
    """How often ids occur, in the order of their first occurrences.

    The last id that was added is the first to be removed. So one that no longer occurs is the last
    in the list, and removing it leaves what was there before it came.
    """

    def __init__(self, ids: Sequence[int] = ()) -> None:
        import numpy as np

        distinct, counts = np.unique(np.asarray(ids, np.int64), return_counts=True)
        self._size = len(distinct)
        self._keep(distinct, counts)
        self._places = {id_: place for place, id_ in enumerate(distinct.tolist())}

    @property
    def ids(self) -> NDArray[np.int64]:
        """Ids that occur, int64 ``[n]``."""
        return self._ids[: self._size]

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often each of them does, int64 ``[n]``."""
        return self._counts[: self._size]

    @property
    def table(self) -> tuple[int, int, int]:
        """Addresses of ``ids`` and ``counts``, until an id is added, and how many they are."""
        return *self._addresses, self._size

    def add(self, id_: int) -> None:
        place = self._places.setdefault(id_, self._size)
        if place == self._size:
            self._append(id_)
        self._counts[place] += 1

    def remove(self, id_: int) -> None:
        place = self._places[id_]
        self._counts[place] -= 1
        if self._counts[place] == 0:
            self._size = place
            del self._places[id_]

    def _append(self, id_: int) -> None:
        import numpy as np

        if self._size == len(self._ids):
            room = 2 * self._size + 16
            self._keep(np.resize(self._ids, room), np.resize(self._counts, room))
        self._ids[self._size], self._counts[self._size] = id_, 0
        self._size += 1

    def _keep(self, ids: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        self._ids, self._counts = ids, counts
        self._addresses = ids.ctypes.data, counts.ctypes.data
