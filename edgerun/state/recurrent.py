"""States of fixed size, such as those of convolutions and linear recurrences."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import Full, InputError
from edgerun.state.memory import Memory
from edgerun.state.prefixes import Key
from edgerun.state.spec import RecurrentState
from edgerun.state.store import Block, Slot

MAX_CHECKPOINTS = 4  # of a slot; the oldest goes first
HALVES = 2
LENGTH_BIT = 32  # of a turn: the length lies above, the row of the committed half below

_Arrays: TypeAlias = list[NDArray[np.float32]]  # of all layers, one after the other


class RecurrentArrays:
    """The arrays of all layers that have such, for every slot, and copies of them to go back to.

    A slot that is used has a *place*: two rows of every array, of which one holds the committed
    state and the other is written by a call. ``commit`` lets the rows change their parts, so a call
    that fails changes nothing, and nothing is copied between calls. What a slot of no tokens has in
    its rows counts as zeros, whatever it is. Rows stay where they are, so native programs read and
    write them; the system commits their memory when they are first written.

    ``turns[slot]`` says where to look: ``length << LENGTH_BIT | row`` of the committed state. It is
    one word, for Ctrl-C may come between any two lines here. A call that begins at that length
    reads this row; one that begins behind it goes on with what the same call wrote so far to the
    other row, ``row ^ 1``, which all calls write.

    Attributes:
        states: what the layers declare.
        turns: int64 ``[slots]``.
    """

    def __init__(
        self, states: Sequence[RecurrentState], slots: int, memory: Memory | None = None
    ) -> None:
        """Reserves address space for ``slots`` sequences.

        Raises:
            MemoryError: the system does not give so much.
            OSError: likewise, of memory on huge pages.
        """
        self.states, self._memory = tuple(states), memory or Memory()
        self._layers = {state.name: layer for layer, state in enumerate(states)}
        self._arrays = [
            [
                self._memory.zeros((HALVES * slots, *array.shape), np.float32, HALVES)
                for array in state.arrays
            ]
            for state in states
        ]
        self.turns = np.zeros(slots, np.int64)
        self._written = np.zeros((len(states), slots), np.int32)  # 1 once the other row holds more
        self._places: list[int | None] = [None] * slots
        self._grown = 0  # places from here on were never written
        self._checkpoints: list[dict[int, _Arrays]] = [{} for _ in range(slots)]

    @property
    def place_bytes(self) -> int:
        """Bytes that a sequence takes."""
        return sum(state_bytes(state) for state in self.states)

    def fields(self, name: str) -> dict[str, int]:
        """Where a layer's arrays are: addresses by the names that its op gives them.

        Besides ``turns``, and ``written``, int32 ``[slots]``, where a program says that it has
        written the other row.
        """
        layer = self._layers[name]
        pairs = zip(self.states[layer].arrays, self._arrays[layer], strict=True)
        return {
            **{declared.name: array.ctypes.data for declared, array in pairs},
            "turns": self.turns.ctypes.data,
            "written": self._written[layer].ctypes.data,
        }

    def copied(self) -> RecurrentArrays:
        """See ``Part``; rows that were never written stay out."""
        other, rows = copy(self), HALVES * self._grown
        other._arrays = [[array[:rows].copy() for array in layer] for layer in self._arrays]
        other.turns, other._written = self.turns.copy(), self._written.copy()
        return other

    def spare(self, without: Sequence[Slot]) -> int:
        """Places that were written and that nobody uses, if some slots were closed."""
        held = [place for slot, place in enumerate(self._places) if slot not in without]
        return self._grown - sum(place is not None for place in held)

    def reachable(self, slot: Slot, length: int, current: int, keys: Sequence[Key]) -> int:
        """See ``Part``: the present length, that of a checkpoint, or 0."""
        lengths = (0, current, *self._checkpoints[slot])
        return max(reached for reached in lengths if reached <= length)

    def cut(self, slot: Slot, length: int, current: int, keys: Sequence[Key]) -> None:
        self._finish(slot, current)
        if length != current:
            self._begin(slot, length, self._checkpoints[slot].get(length, []))
        checkpoints = self._checkpoints[slot]
        self._checkpoints[slot] = {at: arrays for at, arrays in checkpoints.items() if at <= length}

    def share(
        self, source: Slot, slot: Slot, length: int, current: int, keys: Sequence[Key]
    ) -> None:
        """See ``Part``.

        Raises:
            Full: there is no memory for one more sequence.
        """
        self._finish(source, current)
        arrays: _Arrays = []
        if length:
            self._take_place(slot)
            is_now = length == current
            arrays = self._committed(source) if is_now else self._checkpoints[source][length]
        self._begin(slot, length, arrays)
        self._checkpoints[slot] = {}

    def findable(self, keys: Sequence[Key], length: int) -> int:
        """Nothing is stored by ids: the state behind a prefix is gone when the sequence is."""
        return 0

    def adopt(self, slot: Slot, length: int, keys: Sequence[Key]) -> None:
        """Nothing is ever findable."""

    def reserve(self, slot: Slot, current: int, length: int) -> None:
        """Gives a slot its place, and forgets what a call that was not committed has written."""
        self._take_place(slot)
        self._finish(slot, current)

    def commit(self, slot: Slot, length: int) -> None:
        """Lets the row that was written be the committed one, of all layers at once."""
        written = self._written[:, slot]
        row = self._row(slot)
        if written.any():
            for layer in np.flatnonzero(written == 0):
                for array in self._arrays[layer]:
                    array[row ^ 1] = array[row]
            row ^= 1
        self._turn(slot, length, row)
        written[:] = 0

    def checkpoint(self, slot: Slot, length: int) -> None:
        """See ``Part``; without memory for it there is none, and a sequence goes further back."""
        checkpoints = self._checkpoints[slot]
        checkpoints.pop(length, None)
        for at in list(checkpoints)[: 1 - MAX_CHECKPOINTS]:
            del checkpoints[at]
        while not self._memory.take(self.place_bytes // HALVES):
            if not checkpoints:
                return
            del checkpoints[min(checkpoints)]
        checkpoints[length] = [array.copy() for array in self._committed(slot)]

    def name(self, slot: Slot, page: int, key: Key) -> None:
        """There are no pages."""

    def drop(self, slot: Slot) -> None:
        self._turn(slot, 0, 0)
        self._written[:, slot] = 0
        self._places[slot], self._checkpoints[slot] = None, {}

    def read(self, name: str, slot: Slot, start: int, stop: int, out: Block | None = None) -> Block:
        layer, length = self._layers[name], int(self.turns[slot]) >> LENGTH_BIT
        if not stop:
            return tuple(np.zeros_like(array[0]) for array in self._arrays[layer])
        is_going_on = stop > length and bool(self._written[layer, slot])
        row = self._row(slot) ^ is_going_on
        return tuple(array[row].copy() for array in self._arrays[layer])

    def write(self, name: str, slot: Slot, start: int, block: Block) -> None:
        """See ``Part``: takes effect with ``commit``."""
        layer = self._layers[name]
        shapes = [array.shape for array in self.states[layer].arrays]
        if [array.shape for array in block] != shapes:
            raise InputError(
                f"{name} got arrays of {[array.shape for array in block]}; expected {shapes}"
            )
        if self._places[slot] is None:
            raise InputError(f"the state of {name} after {start} tokens is not reserved")
        for array, given in zip(self._arrays[layer], block, strict=True):
            array[self._row(slot) ^ 1] = given
        self._written[layer, slot] = 1

    def _row(self, slot: Slot) -> int:
        """Of the committed state."""
        return int(self.turns[slot]) & ((1 << LENGTH_BIT) - 1)

    def _turn(self, slot: Slot, length: int, row: int) -> None:
        self.turns[slot] = length << LENGTH_BIT | row

    def _committed(self, slot: Slot) -> _Arrays:
        return [array[self._row(slot)] for layer in self._arrays for array in layer]

    def _begin(self, slot: Slot, length: int, arrays: _Arrays) -> None:
        """Lets a slot begin with copies of arrays; without tokens there are none."""
        row = self._row(slot)
        if arrays:
            row ^= 1
            for target, source in zip(chain.from_iterable(self._arrays), arrays, strict=True):
                target[row] = source
        self._turn(slot, length, row)
        self._written[:, slot] = 0

    def _finish(self, slot: Slot, current: int) -> None:
        """Ends a commit that Ctrl-C has cut off, and forgets what was written if there is none."""
        if int(self.turns[slot]) >> LENGTH_BIT != current:
            self.commit(slot, current)
        self._written[:, slot] = 0

    def _take_place(self, slot: Slot) -> None:
        """Gives a slot two rows that nobody uses.

        Raises:
            Full: there are none, and no memory for more.
        """
        if self._places[slot] is not None:
            return
        place = next((n for n in range(self._grown) if n not in self._places), self._grown)
        if place == self._grown:
            if not self._memory.take(self.place_bytes):
                raise Full(
                    f"memory has room for the states of {self._grown} sequences, which are in use: "
                    "end a session or a stream, or load the model with a smaller context"
                )
            self._grown += 1
        self._places[slot] = place
        self._turn(slot, 0, HALVES * place)


def state_bytes(state: RecurrentState) -> int:
    """Bytes that a sequence takes: what is committed, and what a call writes."""
    return HALVES * sum(array.nbytes for array in state.arrays)
