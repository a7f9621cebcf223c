"""What the device has of a sequence's keys and values, written in place by native code.

``write_rows.py`` copies what the cache stores as int8, and has only those bytes flushed that it
wrote. What is valid is known here: tokens of a batch are not until all of it has come to its end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgerun.state import SequenceStore
from edgerun_hw.backend.kv_copy import room_for
from edgerun_hw.devices.native.memory import ContiguousBuffer
from edgerun_hw.devices.native.port import NativePort
from edgerun_hw.overlay.attention import BLOCK_TOKENS
from edgerun_hw.overlay.attention_layout import PORTS, KvLayout

# Words of a layer's copy: the sequence, tokens that are there and that will be, addresses of the
# values' scales and of their largest by block; then for each port the memory, what the device calls
# it, and where it begins in the contiguous memory.
(C_SEQUENCE, C_VALID, C_STOP, C_SCALES, C_LARGEST, C_MEMORY) = range(6)
C_ADDRESS, C_FIRST, COPY_WORDS = C_MEMORY + PORTS, C_MEMORY + 2 * PORTS, C_MEMORY + 3 * PORTS


class SequenceCopy:
    """Keys and values of one sequence, of all layers that attend on the device.

    Args:
        layouts: of the layers.
        slot: of the sequence in the cache.

    Attributes:
        words: int64 ``[layers, COPY_WORDS]``.
        valid: tokens that are there.
        capacity: tokens that there is room for.
    """

    def __init__(self, layouts: Sequence[KvLayout], slot: int) -> None:
        """Takes no memory yet."""
        self._layouts, self._slot = tuple(layouts), slot
        self.words: NDArray[np.int64] = np.zeros((len(layouts), COPY_WORDS), np.int64)
        self.words[:, C_SEQUENCE] = slot
        self.valid, self._version, self.capacity = 0, -1, 0
        self._buffers: list[ContiguousBuffer] = []
        self._scales: list[NDArray[np.uint16]] = []

    def begin(self, port: NativePort, cache: SequenceStore, stop: int) -> None:
        """Makes room for ``stop`` tokens; what was copied behind those of the cache is not valid.

        Args:
            port: that has the memory.
            cache: that holds the sequence.
            stop: tokens after the batch.

        Raises:
            MemoryError: the device has no room for them.
        """
        version = cache.version(self._slot)
        self.valid = min(self.valid, cache.length(self._slot)) if version == self._version else 0
        self._version = version
        if stop > self.capacity:
            self._grow(port, room_for(stop, cache.context))
        self.words[:, C_VALID], self.words[:, C_STOP] = self.valid, stop

    def complete(self) -> None:
        """The batch was computed: its tokens are there."""
        self.valid = int(self.words[0, C_STOP])

    def free(self) -> None:
        """Gives the memory back."""
        for buffer in self._buffers:
            buffer.free()
        self._buffers, self._scales = [], []
        self.capacity = self.valid = 0

    def _grow(self, port: NativePort, room: int) -> None:
        self.free()
        blocks = -(-room // BLOCK_TOKENS)
        try:
            for words, layout in zip(self.words, self._layouts, strict=True):
                for _ in range(PORTS):  # one by one: `free` must know those that found room
                    self._buffers.append(port.allocate(layout.port_bytes(room)))
                buffers = self._buffers[-PORTS:]
                tables = [np.zeros((n, layout.kv_heads), np.uint16) for n in (room, blocks)]
                self._scales += tables
                words[C_SCALES], words[C_LARGEST] = (table.ctypes.data for table in tables)
                words[C_MEMORY:C_ADDRESS] = [buffer.array.ctypes.data for buffer in buffers]
                words[C_ADDRESS:C_FIRST] = [buffer.address for buffer in buffers]
                words[C_FIRST:] = [buffer.span[0] for buffer in buffers]
        except MemoryError:
            self.free()
            raise
        self.capacity = room
