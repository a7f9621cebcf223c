"""A command of a unit in a simulator's memory, and what it must leave there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay.command import Command
from edgerun_hw.simulate.buffers import SimulatedBuffer
from edgerun_hw.simulate.cases import GUARD


@dataclass(frozen=True)
class PlacedCommand:
    """A command whose operands are in memory.

    Attributes:
        command: to be pushed.
        expected: words of the results, by the definition.
        results: where they go, with a guard behind them.
        buffers: all of the command.
    """

    command: Command
    expected: NDArray[np.uint32]
    results: SimulatedBuffer
    buffers: tuple[SimulatedBuffer, ...]

    def difference(self) -> str:
        """Says in what the results differ from the definition; empty when they are equal."""
        end = self.expected.nbytes
        if not (self.results.array[end:] == GUARD).all():
            return "something was written behind the results"
        wrong = np.flatnonzero(self.results.array[:end].view(np.uint32) != self.expected)
        return f"{wrong.size} of {self.expected.size} words differ" if wrong.size else ""

    def erase(self) -> None:
        """Makes the memory of the results as it was before the command."""
        self.results.array[:] = GUARD

    def free(self) -> None:
        """Frees the buffers."""
        for buffer in self.buffers:
            buffer.free()
