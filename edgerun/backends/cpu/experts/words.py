"""The memory that programs and the pool share, and the native calls that change it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.experts.protocol import Entry, Post, Read
from edgerun.kernels.jit.service import native_function
from edgerun.kernels.run.residency import (
    ABORT,
    BELL,
    CONTROL_WORDS,
    COUNT,
    DONE,
    EXPERTS,
    FORESEES,
    HAS_INPUT,
    HITS,
    LOCK,
    LOG,
    LOG_ENTRIES,
    MISSES,
    PATIENCE,
    SEQUENCE,
    TIME,
    WAITED,
)

WORD_BYTES = 8
MOST_EXPERTS = 0.75  # of a layer: a batch that needs so many needs nearly all of the next


@dataclass(frozen=True, slots=True)
class LayerWords:
    """What a layer has of the shared memory.

    Attributes:
        control: the block that all layers share.
        number: of the layer, among those of the pool.
        table: address of each expert's slot, int64 ``[experts]``; 0 while it is not in memory.
        post: the experts that the layer needs, int64, see ``kernels/run/residency.py``.
        scores: of those, float32 ``[experts]``.
        input: what the layer got with its last post that has it, float32 ``[width]``.
    """

    control: NDArray[np.int64]
    number: int
    table: NDArray[np.int64]
    post: NDArray[np.int64]
    scores: NDArray[np.float32]
    input: NDArray[np.float32]

    @property
    def hits(self) -> int:
        """Experts so far that were in memory when they were needed."""
        return int(self.post[HITS])

    @property
    def misses(self) -> int:
        """Experts so far that were not."""
        return int(self.post[MISSES])


class SharedWords:
    """See ``protocol.Words``.

    Attributes:
        control: the block that all layers share.
        layers: by number.
    """

    _over = 0

    def __init__(self, slots: NDArray[np.uint8], patience_s: float) -> None:
        """Takes the slots, uint8 ``[slots, bytes]``, and how long a program may wait for one."""
        self.control = np.zeros(CONTROL_WORDS, np.int64)
        self.control[PATIENCE] = int(patience_s * 1e9)
        self.layers: list[LayerWords] = []
        self._address = int(self.control.ctypes.data)
        self._first_slot, self._slot_bytes = int(slots.ctypes.data), slots.strides[0]
        self._tables: list[int] = []  # addresses
        self._posted = native_function("pool-posted", 1, result=True)
        self._evict = native_function("pool-evict", 3, result=True)
        self._publish = native_function("pool-publish", 2, result=False)

    def add_layer(self, experts: int, width: int) -> LayerWords:
        """Makes the memory of one more layer, which has so many experts and columns."""
        layer = LayerWords(
            self.control,
            len(self.layers),
            np.zeros(experts, np.int64),
            np.zeros(EXPERTS + experts, np.int64),
            np.zeros(experts, np.float32),
            np.zeros(width, np.float32),
        )
        self.layers.append(layer)
        self._tables.append(int(layer.table.ctypes.data))
        return layer

    @property
    def waited_s(self) -> float:
        """Seconds in which a thread or more waited."""
        return int(self.control[WAITED]) / 1e9

    def start(self, bell: int, *, foresees: bool) -> None:
        """Before a run.

        Args:
            bell: the descriptor of a pipe that the program writes to.
            foresees: the inputs of layers are to be posted with what they need.
        """
        control = self.control
        control[BELL], control[FORESEES], control[ABORT] = bell, foresees, 0

    def end(self) -> None:
        """After a run. Another thread may look meanwhile, and Ctrl-C come at any time."""
        self._over = self.posted()

    def over(self) -> int:
        return self._over

    def unlock(self) -> None:
        """In a forked child, where those who held the lock are gone."""
        self.control[LOCK] = 0

    def abort(self, reason: int) -> None:
        """Lets nobody wait any more, in the run under way."""
        self.control[ABORT] = reason

    @property
    def aborted(self) -> int:
        """Why nobody waits any more; 0 while all is well."""
        return int(self.control[ABORT])

    def posted(self) -> int:
        return int(self._posted(self._address))

    def post(self, number: int) -> Post | None:
        layer = self.layers[int(self.control[LOG + number % LOG_ENTRIES])]
        words = layer.post
        if words[SEQUENCE] != number:
            return None
        count = int(words[COUNT])
        experts, scores = words[EXPERTS : EXPERTS + count].tolist(), layer.scores[:count].tolist()
        seconds, has_input = int(words[TIME]) / 1e9, bool(words[HAS_INPUT])
        if words[SEQUENCE] != number:  # it was overwritten meanwhile
            return None
        needs_most = count >= MOST_EXPERTS * len(layer.table)
        return Post(
            layer.number, tuple(experts), tuple(scores), number, seconds, has_input, needs_most
        )

    def input(self, post: Post) -> NDArray[np.float32] | None:
        """What the layer of a post got; None if a later post has taken its place."""
        layer = self.layers[post.layer]
        copy = layer.input.copy()
        return copy if layer.post[SEQUENCE] == post.number else None

    def done(self, layer: int) -> int:
        return int(self.layers[layer].post[DONE])

    def evict(self, entry: Entry, number: int) -> bool:
        return bool(self._evict(self._address, self._word(entry), number))

    def publish(self, entry: Entry, slot: int) -> None:
        self._publish(self._word(entry), self._slot(slot))

    def places(self, read: Read) -> tuple[int, int]:
        """Addresses of the slot of a read, and of the word that gets it."""
        return self._slot(read.slot), self._word(read.entry)

    def _slot(self, slot: int) -> int:
        return self._first_slot + slot * self._slot_bytes

    def _word(self, entry: Entry) -> int:
        layer, expert = entry
        return self._tables[layer] + WORD_BYTES * expert
