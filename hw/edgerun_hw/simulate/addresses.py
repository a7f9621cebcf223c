"""Addresses of buffers in the simulated memory."""

from __future__ import annotations

PAGE_BYTES = 4096
# The upper memory of Zynq UltraScale+ begins here, so that addresses need their high words.
HIGH_MEMORY = 0x8_0000_0000


class AddressSpace:
    """Hands out page-aligned address ranges, first fit, with an unmapped page after each.

    Args:
        addr_bits: width of the overlay's addresses.
    """

    def __init__(self, addr_bits: int) -> None:
        top = 1 << addr_bits
        self._start = HIGH_MEMORY if top > HIGH_MEMORY else min(1 << 20, top // 16)
        self._end = min(top, 2 * self._start) if top > HIGH_MEMORY else top
        self._used: list[tuple[int, int]] = []  # sorted (first, end)

    def take(self, nbytes: int) -> int:
        """Returns the address of ``nbytes`` free bytes.

        Raises:
            MemoryError: there is no gap of that size.
        """
        size = -(-nbytes // PAGE_BYTES) * PAGE_BYTES + PAGE_BYTES
        first = self._start
        for place, (used_first, used_end) in enumerate(self._used):
            if first + size <= used_first:
                self._used.insert(place, (first, first + size))
                return first
            first = used_end
        if first + size > self._end:
            raise MemoryError(
                f"no room for {nbytes} bytes in the {self._end - self._start} bytes that the "
                "simulated overlay can address; free buffers"
            )
        self._used.append((first, first + size))
        return first

    def give_back(self, address: int) -> None:
        """Frees what ``take`` returned."""
        self._used = [used for used in self._used if used[0] != address]
