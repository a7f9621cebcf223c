"""The driver's port on registers and memory of this machine."""

from __future__ import annotations

from collections.abc import Callable

from edgerun.errors import InputError
from edgerun_hw.devices.native.exchange import Exchange, board_exchange, python_exchange
from edgerun_hw.devices.native.kernel import Kernel, MappedWindow
from edgerun_hw.devices.native.memory import (
    FROM_DEVICE,
    TO_DEVICE,
    ContiguousBuffer,
    ContiguousMemory,
)
from edgerun_hw.overlay.register_map import WINDOW_BYTES

# Below this a sleep takes longer than what it should wait for; the next look comes at once.
SHORTEST_SLEEP_S = 50e-6


class NativePort:
    """Registers, memory and time of an overlay on this machine; satisfies ``port.DevicePort``.

    Args:
        kernel: of the machine.
        base: bus address of the registers.
        clock_hz: clock of the logic, by which waiting times are reckoned.
        memory: name of the u-dma-buf device.
        on_close: called when the port is closed.

    Raises:
        InputError: registers or memory cannot be reached, and why.
    """

    def __init__(
        self,
        kernel: Kernel,
        base: int,
        clock_hz: float,
        memory: str,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._kernel = kernel
        self._memory = ContiguousMemory(kernel, memory)
        self._window = kernel.map_registers(base, WINDOW_BYTES)
        self.read, self.write = self._window.read, self._window.write
        self._clock_hz, self._on_close = clock_hz, on_close

    def allocate(self, nbytes: int) -> ContiguousBuffer:
        """Allocates zeroed memory.

        Raises:
            MemoryError: there is not that much in one piece.
        """
        return self._memory.allocate(nbytes)

    def check_addresses(self, addr_bits: int) -> None:
        """Whether an overlay whose addresses have so many bits reaches all of the memory.

        Raises:
            InputError: it does not.
        """
        if self._memory.address + self._memory.nbytes > 1 << addr_bits:
            raise InputError(
                f"the memory of u-dma-buf, {self._memory.nbytes} bytes at "
                f"{self._memory.address:#x}, ends beyond the overlay's {addr_bits} address bits: "
                "have it made lower (cma=SIZE@0-4G on the kernel's command line)"
            )

    def wait(self, cycles: int) -> None:
        """Sleeps for about so long."""
        seconds = cycles / self._clock_hz
        if seconds >= SHORTEST_SLEEP_S:
            self._kernel.sleep(seconds)

    def exchange(self) -> Exchange:
        """How native code reaches registers, and flushes and invalidates the memory."""
        if isinstance(self._window, MappedWindow):
            files = self._memory.open_attributes()
            return board_exchange(self._window.address, files, self._clock_hz)
        return python_exchange(self, self._flush, self._invalidate)

    def _flush(self, first: int, nbytes: int) -> None:
        self._memory.synchronise(TO_DEVICE, first, nbytes)

    def _invalidate(self, first: int, nbytes: int) -> None:
        self._memory.synchronise(FROM_DEVICE, first, nbytes)

    def close(self) -> None:
        """Unmaps registers and memory."""
        self._window.close()
        self._memory.close()
        self._on_close()
