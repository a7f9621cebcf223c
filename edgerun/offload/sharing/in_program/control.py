"""The memory that programs share with whoever has a device obey their commands."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.jit.service import native_function
from edgerun.kernels.run import commands as words
from edgerun.offload.policies.base import Entry
from edgerun.offload.sharing.device import CHECK_EVERY
from edgerun.offload.sharing.trials import TRIAL

LINE_WORDS = 8
SAID = {
    words.LATE: "it did not answer within {patience_s:g} s",
    words.DIFFERS: "it computes other numbers than the processor",
}


class Control:
    """The control block, and which experts are on the device.

    Attributes:
        words: int64, see ``kernels/run/commands.py``; begins on a cache line.
        address: of these.
    """

    def __init__(self) -> None:
        """Nothing is given, and nothing is there."""
        memory = np.zeros(words.CONTROL_WORDS + LINE_WORDS, np.int64)
        start = -memory.ctypes.data // 8 % LINE_WORDS
        self.words = memory[start : start + words.CONTROL_WORDS]
        self.words[words.CHECK_EVERY], self.words[words.TRY_EVERY] = CHECK_EVERY, TRIAL
        self.address = int(self.words.ctypes.data)
        self._tables: dict[int, NDArray[np.int64]] = {}
        self._publish = native_function("pool-publish", 2, result=False)

    def table(self, layer: int, experts: int) -> NDArray[np.int64]:
        """Of each expert of a layer its slot, counted from 1, or 0; int64 ``[experts]``."""
        if layer not in self._tables:
            self._tables[layer] = np.zeros(experts, np.int64)
        return self._tables[layer]

    def put(self, entry: Entry, slot: int) -> None:
        """An expert is in a slot now, and so is all of it."""
        layer, expert = entry
        if layer in self._tables:
            self._publish(self._tables[layer][expert:].ctypes.data, slot + 1)

    def remove(self, entry: Entry) -> None:
        """An expert is there no more; between runs, or a program might look for it."""
        layer, expert = entry
        if layer in self._tables:
            self._tables[layer][expert] = 0

    def end_life(self) -> None:
        """Gives no commands until ``open``, and none of them to those who listen now."""
        self.words[words.OPEN] = 0
        self.words[words.LIFE] += 1

    @property
    def is_waiting(self) -> bool:
        """Whether a command was given whose answer has not come."""
        return bool(self.words[words.GIVEN] != self.words[words.DONE])

    @property
    def life(self) -> int:
        """Who listens in another is to end."""
        return int(self.words[words.LIFE])

    def clear(self) -> None:
        """The device is empty, nothing is wrong, and nobody waits for what was given."""
        self.words[words.OPEN] = self.words[words.FAULT] = 0
        self.words[words.DONE] = self.words[words.GIVEN]
        for table in self._tables.values():
            table[:] = 0

    def open(self, patience_s: float, *, is_shared: bool) -> None:
        """Before a run, in which layers may be shared or may not."""
        self.words[words.PATIENCE] = int(patience_s * 1e9)
        self.words[words.OPEN] = is_shared

    def answer(self, number: int, began_s: float, ended_s: float) -> None:
        """A command was obeyed."""
        self.words[words.BEGAN], self.words[words.ENDED] = int(began_s * 1e9), int(ended_s * 1e9)
        self._publish(self.address + 8 * words.DONE, number)

    def fail(self) -> None:
        """Lets nobody wait any more."""
        self.words[words.FAULT] = words.FAILED

    @property
    def fault(self) -> int:
        """What is wrong; 0 while all is well."""
        return int(self.words[words.FAULT])
