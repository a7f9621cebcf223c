"""A board's device files without a board: what the native host maps, over a simulated overlay.

Files are real files below a folder: ``/dev/udmabuf0`` is mapped as on a board. Two copies of the
memory stand for cache and DRAM: what the processor writes into the file reaches the overlay when
``sync_for_device`` is written, and what the overlay writes reaches the file with ``sync_for_cpu``.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from edgerun_hw.overlay.port import DevicePort

PAGE_BYTES = 4096
NAME = "udmabuf0"
CLASS = f"sys/class/u-dma-buf/{NAME}"
DIRECTIONS = {"sync_for_device": 1, "sync_for_cpu": 2}
OWNED = 1
CLOCK_HZ = 250e6


class PortWindow:
    """Registers of a ``DevicePort`` as if they were mapped.

    The logic of a board runs by itself; a simulation runs for some cycles with every access.
    """

    CYCLES = 256

    def __init__(self, port: DevicePort) -> None:
        self._port = port

    def read(self, offset: int) -> int:
        """Reads a register."""
        self._port.wait(self.CYCLES)
        return self._port.read(offset)

    def write(self, offset: int, value: int) -> None:
        """Writes a register."""
        self._port.write(offset, value)

    def close(self) -> None:
        """Ends the simulation."""
        self._port.close()


class EmulatedKernel:
    """A kernel whose logic is a ``DevicePort``.

    Args:
        root: a folder, in which the device files are made.
        port: the logic, whose own buffers need no ``flush`` and no ``invalidate``.
        base: bus address of its registers.
        nbytes: of contiguous memory; whole pages.

    Attributes:
        writes: names of the attributes that were written, in order.
        spans: first byte and length that each of them named.
    """

    def __init__(self, root: Path, port: DevicePort, base: int, nbytes: int) -> None:
        self.root, self._port, self._base = root, port, base
        self._memory = port.allocate(nbytes)
        self.writes: list[str] = []
        self.spans: list[tuple[int, int]] = []
        (root / CLASS).mkdir(parents=True)
        (root / "dev").mkdir(exist_ok=True)
        (root / "dev/mem").touch()
        for name, text in {
            "phys_addr": f"{self._memory.address:#018x}",
            "size": str(nbytes),
            "dma_coherent": "0",
        }.items():
            (root / CLASS / name).write_text(f"{text}\n")
        with (root / "dev" / NAME).open("wb") as file:
            file.truncate(nbytes)
        descriptor = os.open(root / "dev" / NAME, os.O_RDWR)
        self._cached = mmap.mmap(descriptor, nbytes)
        os.close(descriptor)

    def map_registers(self, base: int, nbytes: int) -> PortWindow:
        """Maps the registers.

        Raises:
            AssertionError: they are somewhere else; on a board the bus would hang.
        """
        assert (base, nbytes <= PAGE_BYTES) == (self._base, True)
        return PortWindow(self._port)

    def write_attribute(self, path: str, text: str) -> None:
        """Moves a part of the memory between the copies, as the caches would."""
        folder, _, name = path.rpartition("/")
        assert folder == CLASS
        self.writes.append(name)
        value = int(text, 16)
        first, length = value >> 32, value & 0xFFFFFFF0
        self.spans.append((first, length))
        assert (value & 3, value >> 2 & 3) == (OWNED, DIRECTIONS[name])
        span = slice(first, first + length)
        if name == "sync_for_device":
            self._memory.array[span] = memoryview(self._cached)[span]
        else:
            self._cached[span] = self._memory.array[span].tobytes()

    def sleep(self, seconds: float) -> None:
        """Runs the logic for so long."""
        self._port.wait(int(seconds * CLOCK_HZ))
