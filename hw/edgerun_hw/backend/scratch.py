"""Memory of the device for what goes there and comes back, kept from one call to the next.

Memory in one piece is slow to come by: it is zeroed, mapped and, through a worker, asked for in a
message. What is needed in every layer of every token is asked for once. Nor is it given back while
commands may write to it that were cut off.
"""

from __future__ import annotations

from edgerun_hw.overlay.port import Buffer, Overlay

MIN_BYTES = 4096


class Scratch:
    """Buffers by what they are for; of each kind one is in use at a time."""

    def __init__(self, overlay: Overlay) -> None:
        """Takes no memory of the device yet."""
        self._overlay = overlay
        # By size: a flush copies all of a buffer, and tokens after a long prompt need little of it.
        self._buffers: dict[tuple[str, int], Buffer] = {}

    def take(self, kind: str, nbytes: int) -> Buffer:
        """A buffer of at least so many bytes; it holds whatever the last call has left there.

        Raises:
            MemoryError: the device has no room for it.
        """
        size = max(MIN_BYTES, 1 << (nbytes - 1).bit_length())
        if (kind, size) not in self._buffers:
            self._buffers[kind, size] = self._overlay.allocate(size)
        return self._buffers[kind, size]

    def free(self) -> None:
        """Gives the memory back."""
        buffers, self._buffers = self._buffers, {}
        for buffer in buffers.values():
            buffer.free()
