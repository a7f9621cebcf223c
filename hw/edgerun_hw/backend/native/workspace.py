"""What the instructions of a program share: the device's memory, how to reach it, and words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.binder import Binder
from edgerun.kernels.run.instructions import Code, Instruction, Loaded
from edgerun.kernels.run.program import FRAME_WORDS
from edgerun.state import Batch
from edgerun_hw.backend.native import request
from edgerun_hw.devices.native.exchange import Exchange
from edgerun_hw.devices.native.memory import ContiguousBuffer
from edgerun_hw.devices.native.port import NativePort
from edgerun_hw.overlay.command import Capabilities
from edgerun_hw.overlay.driver import TIMEOUT_CYCLES

# Words of what is done to logits of a row.
A_COUNT, A_IDS, A_DIVISORS, A_AMOUNTS, ADJUSTMENT_WORDS = range(5)
# Words of the frame: 1 if a head is to be multiplied whole, or by its screen.
WHOLE_HEAD, SCREENED_HEAD = FRAME_WORDS - 1, FRAME_WORDS - 2


@dataclass(frozen=True)
class ScreenedHead:
    """An output head that is emitted whole and as a screen.

    Attributes:
        frame: of the program.
        adjustments: int64 ``[rows, ADJUSTMENT_WORDS]``: how many logits of a row are adjusted, and
            where their ids, divisors and amounts are.
        arrays: those that the words of the last batch point to.
    """

    frame: NDArray[np.int64]
    adjustments: NDArray[np.int64]
    arrays: list[NDArray[Any]] = field(default_factory=list)

    def choose(self, batch: Batch) -> None:
        """Says for the next run which of the two it needs, if any."""
        any_logits = len(batch.logit_rows) > 0
        self.frame[WHOLE_HEAD] = any_logits and not batch.largest_only
        self.frame[SCREENED_HEAD] = any_logits and batch.largest_only
        self.adjustments[: len(batch.logit_rows), A_COUNT] = 0
        self.arrays.clear()
        for row, adjust in enumerate(batch.adjustments):
            adjustment = None if adjust is None else adjust()
            if adjustment is not None:
                each = adjustment.ids, adjustment.divisors, adjustment.amounts
                arrays = [np.ascontiguousarray(array) for array in each]
                places = [array.ctypes.data for array in arrays]
                self.adjustments[row] = len(adjustment.ids), *places
                self.arrays.extend(arrays)


@dataclass(frozen=True)
class Workspace:
    """Memory of the device that the instructions of a program share.

    Attributes:
        x: activations and queries.
        results: of as many commands as may be under way.
        state: int64 ``[STATE_WORDS]``: a request, and how the program went.
        exchange: how native code reaches the overlay.
        screened: int64 ``[COUNT_WORDS]`` of ``rescore.py``.
        heads: output heads of the program that have a screen.
    """

    x: ContiguousBuffer
    results: tuple[ContiguousBuffer, ...]
    state: NDArray[np.int64]
    exchange: Exchange
    screened: NDArray[np.int64]
    heads: list[ScreenedHead] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        port: NativePort,
        x_bytes: int,
        y_bytes: int,
        queue_depth: int,
        screened: NDArray[np.int64],
    ) -> Workspace:
        """Allocates it.

        Raises:
            MemoryError: the device has no room for it.
        """
        buffers: list[ContiguousBuffer] = []
        try:
            for nbytes in (x_bytes, *[y_bytes] * queue_depth):
                buffers.append(port.allocate(nbytes))
        except BaseException:
            for buffer in buffers:
                buffer.free()
            raise
        state = np.zeros(request.STATE_WORDS, np.int64)
        return cls(buffers[0], tuple(buffers[1:]), state, port.exchange(), screened)

    def common_words(self, can: Capabilities) -> dict[int, int]:
        """The first words of every argument block."""
        return {
            request.FUNCTION: self.exchange.function,
            request.CONTEXT: self.exchange.context,
            request.STATE: self.state.ctypes.data,
            request.PATIENCE: TIMEOUT_CYCLES,
            request.PORTS: can.ports,
        }

    def result_words(self) -> NDArray[np.int64]:
        """Where the results lie, int64 ``[commands, RESULT_WORDS]``."""
        places = [
            (buffer.array.ctypes.data, buffer.address, buffer.span[0]) for buffer in self.results
        ]
        return np.array(places, np.int64)

    def free(self) -> None:
        """Gives the device's memory back."""
        for buffer in (self.x, *self.results):
            buffer.free()


def argument_block(words: Mapping[int, int]) -> NDArray[np.int64]:
    """An argument block of words by their places, which have no gap."""
    return np.array([words[place] for place in range(len(words))], np.int64)


def append(
    binder: Binder,
    function: Code,
    arguments: NDArray[np.int64],
    size: int,
    reads: set[str],
    writes: set[str],
    label: str,
) -> None:
    """Appends an instruction for one thread, which does nothing if a word of the frame is 0."""
    binder.instructions.append(
        Instruction(
            code=Loaded(function.address),
            arguments=arguments,
            fields=tuple(map(str, range(len(arguments)))),
            size=size,
            times=1,
            divide=1,
            reads=frozenset(reads),
            writes=frozenset(writes),
            label=label,
        )
    )
