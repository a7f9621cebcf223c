"""What the device has of a sequence's keys and values: a copy of what the cache stores as int8."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgerun.state import SequenceStore
from edgerun.state.codecs.base import quantize
from edgerun_hw.overlay.attention import Cache, decode_scales, encode_scales
from edgerun_hw.overlay.attention_layout import PORTS, KvLayout
from edgerun_hw.overlay.port import Buffer, Overlay

LARGEST = 127
MIN_TOKENS = 256  # that a copy has room for at first


def room_for(tokens: int, context: int) -> int:
    """Tokens that a copy of so many gets room for: more, but none beyond the context."""
    return min(max(MIN_TOKENS, 1 << (tokens - 1).bit_length()), max(context, tokens))


@dataclass
class KvCopy:
    """A sequence's keys and values of a layer on the device.

    Attributes:
        layout: of the layer.
        capacity: tokens that there is room for.
        buffers: of the four ports.
        scales: of the values, encoded, ``[capacity, kv_heads]``.
        version: of the cache's slot that was copied.
        valid: tokens that are there.
    """

    layout: KvLayout
    capacity: int = 0
    buffers: list[Buffer] = field(default_factory=list)
    scales: NDArray[np.uint16] = field(default_factory=lambda: np.zeros((0, 0), np.uint16))
    version: int = -1
    valid: int = 0

    def update(
        self, overlay: Overlay, cache: SequenceStore, name: str, slot: int, stop: int
    ) -> None:
        """Copies what is missing of the first ``stop`` tokens.

        Raises:
            MemoryError: the device has no room for them.
        """
        version = cache.version(slot)
        self.valid = min(self.valid, cache.length(slot)) if version == self.version else 0
        self.version = version
        if stop > self.capacity:
            self._grow(overlay, room_for(stop, cache.context))
        keys, values = cache.read_block(name, slot, self.valid, stop)
        stored = [quantize(part, LARGEST) for part in (keys, values)]
        scales = [encode_scales(scale[..., 0]) for _, scale in stored]
        part = Cache(stored[0][0], stored[1][0], scales[0], scales[1])
        self.layout.write([buffer.array for buffer in self.buffers], self.valid, part)
        for buffer in self.buffers:
            buffer.flush()
        self.scales[self.valid : stop] = scales[1]
        self.valid = stop

    def largest(self, tokens: int) -> NDArray[np.float32]:
        """Bounds of the magnitudes of values among the first ``tokens``, ``[kv_heads]``."""
        return decode_scales(self.scales[:tokens].max(axis=0)) * np.float32(LARGEST)

    def free(self) -> None:
        """Gives the memory back.

        Raises:
            OverlayError: the device failed.
        """
        for buffer in self.buffers:
            buffer.free()
        self.buffers, self.capacity, self.valid = [], 0, 0

    def _grow(self, overlay: Overlay, capacity: int) -> None:
        self.free()
        try:
            for _ in range(PORTS):
                self.buffers.append(overlay.allocate(self.layout.port_bytes(capacity)))
        except MemoryError:
            self.free()
            raise
        self.scales = np.zeros((capacity, self.layout.kv_heads), np.uint16)
        self.capacity = capacity
