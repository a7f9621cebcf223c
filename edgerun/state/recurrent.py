"""States of fixed size, such as those of convolutions and linear recurrences."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import chain
from typing import Any

import numpy as np

from edgerun.errors import Full, InputError
from edgerun.state.copies import Arrays, Copies
from edgerun.state.memory import Memory
from edgerun.state.prefixes import Key
from edgerun.state.spec import RecurrentState
from edgerun.state.store import Block, Slot

MAX_CHECKPOINTS = 4  # of a slot; the oldest goes first
MAX_PREFIXES = 8  # of a store, behind which there are copies
HALVES = 2
LENGTH_BIT = 32  # of a turn: the length lies above, the row of the committed half below


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
        half = self.place_bytes // HALVES
        self._checkpoints = [Copies[int](MAX_CHECKPOINTS, half, self._memory) for _ in range(slots)]
        self._prefixes = Copies[Key](MAX_PREFIXES, half, self._memory)

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
        """See ``Part``: the present length, that of a copy, or 0."""
        if current <= length:
            return current
        checkpoints = self._checkpoints[slot]
        return max(checkpoints.longest(checkpoints.keys(), length), self.findable(keys, length))

    def cut(self, slot: Slot, length: int, current: int, keys: Sequence[Key]) -> None:
        self._finish(slot, current)
        if length != current:
            self._begin(slot, length, self._copy(slot, length, keys))
        self._checkpoints[slot].forget(longer=length)

    def share(
        self, source: Slot, slot: Slot, length: int, current: int, keys: Sequence[Key]
    ) -> None:
        """See ``Part``.

        Raises:
            Full: there is no memory for one more sequence.
        """
        self._finish(source, current)
        arrays: Arrays = ()
        if length:
            self._take_place(slot)
            is_now = length == current
            arrays = self._committed(source) if is_now else self._copy(source, length, keys)
        self._begin(slot, length, arrays)

    def findable(self, keys: Sequence[Key], length: int) -> int:
        return self._prefixes.longest(keys, length)

    def adopt(self, slot: Slot, length: int, keys: Sequence[Key]) -> None:
        """See ``Part``.

        Raises:
            Full: there is no memory for one more sequence.
        """
        if length:
            self._take_place(slot)
            self._begin(slot, length, self._prefixes.find(keys, length))

    def keep(self, slot: Slot, length: int, key: Key) -> None:
        """Lets the state of a slot, whose ids a key stands for, be found when it is another."""
        self._finish(slot, length)
        self._prefixes.add(key, length, self._committed(slot))

    def forget_copies(self) -> bool:
        """Gives back the memory of all copies, which nobody has to have; False without any."""
        copies: list[Copies[Any]] = [self._prefixes, *self._checkpoints]
        is_any = any(len(each) for each in copies)
        for each in copies:
            each.forget()
        return is_any

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
        self._checkpoints[slot].add(length, length, self._committed(slot))

    def name(self, slot: Slot, page: int, key: Key) -> None:
        """There are no pages."""

    def drop(self, slot: Slot) -> None:
        self._turn(slot, 0, 0)
        self._written[:, slot] = 0
        self._places[slot] = None
        self._checkpoints[slot].forget()

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

    def _committed(self, slot: Slot) -> Arrays:
        return [array[self._row(slot)] for layer in self._arrays for array in layer]

    def _copy(self, slot: Slot, length: int, keys: Sequence[Key]) -> Arrays:
        """What a slot had after so many tokens; nothing after none."""
        checkpoint = self._checkpoints[slot].find([length], length)
        return checkpoint or self._prefixes.find(keys, length)

    def _begin(self, slot: Slot, length: int, arrays: Arrays) -> None:
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
