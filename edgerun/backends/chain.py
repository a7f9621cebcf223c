"""Executables of consecutive segments as one."""

from __future__ import annotations

from collections.abc import Sequence

from edgerun.backends.base import NO_VALUES, Executable, Values
from edgerun.state import Batch, SequenceStore


class Chain(Executable):
    """Executables of consecutive segments as one."""

    def __init__(self, parts: Sequence[Executable]) -> None:
        self._parts = list(parts)

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        """Runs the parts in order, each seeing what the earlier ones produced."""
        computed = dict(values)
        for part in self._parts:
            computed.update(part(batch, cache, computed))
        return computed

    def close(self) -> None:
        """Closes the parts."""
        for part in self._parts:
            part.close()
