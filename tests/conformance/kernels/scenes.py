"""Sequences with a state of fixed size, and the rows of a call that goes on with them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.ops.registry import OPS
from edgerun.state import Batch, RecurrentState, SequenceStore
from tests.conformance.kernels.harness import F32, assert_near, random

# Of each sequence, tokens before the call and rows of it.
PARTS = ((0, 3), (2, 2), (70, 1), (0, 1), (9, 5))
COUNT = 4
F64 = NDArray[np.float64]


class Scene:
    """A layer's state after some tokens of each sequence, and the rows of a call."""

    def __init__(self, op: str, sizes: dict[str, int], width: int, inputs: str) -> None:
        self.sizes, self.width, self._called = {**sizes, "count": COUNT}, width, inputs
        declare = OPS[op].state
        assert declare is not None
        state = declare({**self.sizes, "layer": 0})
        other = declare({**self.sizes, "layer": 1})
        assert isinstance(state, RecurrentState)
        self.name = state.name
        self.store, batches = SequenceStore((other, state), 128, len(PARTS)), []
        for tokens, rows in PARTS:
            slot = self.store.open()
            self.store.reserve(slot, tokens + rows)
            if tokens:
                block = tuple(random(array.shape, slot + 1) for array in state.arrays)
                block[0][: max(0, COUNT - 1 - tokens)] = 0  # before position 0
                for held in self.store.states:
                    self.store.write_block(held.name, slot, 0, block)
            self.store.commit(slot, tokens)
            batches.append(Batch.of([0] * rows, tokens, slot))
        self.batch = Batch.join(batches)
        self.inputs = random((self.batch.rows, width), 1, gap=3)

    def fields(self, *others: str) -> dict[str, Any]:
        """What both kernels are told of the batch and the state."""
        there = self.store.recurrent(self.name).fields(self.name)
        return {
            **self.sizes,
            "width": self.width,
            "positions": self.batch.positions,
            "sequences": self.batch.sequences,
            self._called: self.inputs,
            f"{self._called}_stride": self.width + 3,
            **{name: there[name] for name in ("conv", "turns", *others)},
        }

    def parts(self) -> list[tuple[int, slice, F32, F32]]:
        """Of each sequence its slot, its rows, and what is committed."""
        return [
            (slot, slice(start, stop), *self.store.read_block(self.name, slot, length, length))
            for slot, (start, stop) in enumerate(self.batch.runs())
            for length in [self.store.length(slot)]
        ]

    def convolved(self, taps: F32, bias: F32 | float = 0) -> F64:
        """SiLU of what taps make of the latest tokens of each row."""
        expected = np.empty((self.batch.rows, self.width))
        for _, mine, past, _ in self.parts():
            tokens = np.concatenate([past, self.inputs[mine, : self.width]]).astype(np.float64)
            for place, row in enumerate(range(mine.start, mine.stop)):
                total = (tokens[place : place + COUNT] * taps).sum(axis=0) + bias
                expected[row] = total / (1 + np.exp(-total))
        return expected

    def check_states(self, slot: int, mine: slice, past: F32, matrix: F32, after: F64) -> None:
        """Asserts what a sequence has, before it is committed and then."""
        length = self.store.length(slot)
        there = self.store.read_block(self.name, slot, length, length)
        for array, before in zip(there, (past, matrix), strict=True):
            np.testing.assert_array_equal(array, before)
        self.store.commit(slot, length + mine.stop - mine.start)
        length = self.store.length(slot)
        conv, matrix = self.store.read_block(self.name, slot, length, length)
        tokens = np.concatenate([past, self.inputs[mine, : self.width]])
        np.testing.assert_array_equal(conv, tokens[1 - COUNT :])
        assert_near(matrix, after, 2e-6)
