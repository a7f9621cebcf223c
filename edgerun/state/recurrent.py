"""States of fixed size, such as those of convolutions and linear recurrences."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import InputError
from edgerun.state.prefixes import Key
from edgerun.state.spec import RecurrentState
from edgerun.state.store import Block, Slot

MAX_CHECKPOINTS = 4  # of a slot; the oldest goes first

_Arrays: TypeAlias = tuple[NDArray[np.float32], ...]


class RecurrentArrays:
    """The arrays of one layer for every slot, and copies of them to go back to.

    What a call writes counts once it is committed: ``read`` returns the state before the call until
    then, so that a call that fails changes nothing.

    Attributes:
        states: what the layer declares, alone.
    """

    def __init__(self, state: RecurrentState, slots: int) -> None:
        """Begins with zeros everywhere."""
        self.states, self._arrays = (state,), state.arrays
        self._now: list[_Arrays] = [self._zeros()] * slots
        self._written: list[_Arrays | None] = [None] * slots
        self._checkpoints: list[dict[int, _Arrays]] = [{} for _ in range(slots)]

    def copied(self) -> RecurrentArrays:
        other = copy(self)
        other._now, other._written = list(self._now), list(self._written)
        return other

    def reachable(self, slot: Slot, length: int, current: int, keys: Sequence[Key]) -> int:
        """See ``Part``: the present length, that of a checkpoint, or 0."""
        lengths = (0, current, *self._checkpoints[slot])
        return max(reached for reached in lengths if reached <= length)

    def cut(self, slot: Slot, length: int, current: int, keys: Sequence[Key]) -> None:
        self._written[slot] = None
        self._now[slot] = self._at(slot, length, current)
        checkpoints = self._checkpoints[slot]
        self._checkpoints[slot] = {at: arrays for at, arrays in checkpoints.items() if at <= length}

    def share(
        self, source: Slot, slot: Slot, length: int, current: int, keys: Sequence[Key]
    ) -> None:
        """See ``Part``; arrays are replaced and never changed, so nothing is copied."""
        self._now[slot] = self._at(source, length, current)
        self._checkpoints[slot] = {}

    def findable(self, keys: Sequence[Key], length: int) -> int:
        """Nothing is stored by ids: the state behind a prefix is gone when the sequence is."""
        return 0

    def adopt(self, slot: Slot, length: int, keys: Sequence[Key]) -> None:
        """Nothing is ever findable."""

    def reserve(self, slot: Slot, current: int, length: int) -> None:
        """Forgets what a call that was not committed has written."""
        self._written[slot] = None

    def commit(self, slot: Slot, length: int) -> None:
        written = self._written[slot]
        if written is not None:
            self._now[slot], self._written[slot] = written, None

    def checkpoint(self, slot: Slot, length: int) -> None:
        checkpoints = self._checkpoints[slot]
        checkpoints.pop(length, None)
        checkpoints[length] = self._now[slot]
        for at in list(checkpoints)[:-MAX_CHECKPOINTS]:
            del checkpoints[at]

    def name(self, slot: Slot, page: int, key: Key) -> None:
        """There are no pages."""

    def drop(self, slot: Slot) -> None:
        self._now[slot], self._written[slot], self._checkpoints[slot] = self._zeros(), None, {}

    def read(self, name: str, slot: Slot, start: int, stop: int, out: Block | None = None) -> Block:
        return self._now[slot]

    def write(self, name: str, slot: Slot, start: int, block: Block) -> None:
        """See ``Part``: takes effect with ``commit``."""
        shapes = [array.shape for array in self._arrays]
        if [array.shape for array in block] != shapes:
            raise InputError(
                f"{name} got arrays of {[array.shape for array in block]}; expected {shapes}"
            )
        copies = tuple(np.array(array, np.float32) for array in block)
        for array in copies:
            array.flags.writeable = False
        self._written[slot] = copies

    def _at(self, slot: Slot, length: int, current: int) -> _Arrays:
        if length == current:
            return self._now[slot]
        return self._checkpoints[slot][length] if length else self._zeros()

    def _zeros(self) -> _Arrays:
        zeros = tuple(np.zeros(array.shape, np.float32) for array in self._arrays)
        for array in zeros:
            array.flags.writeable = False
        return zeros
