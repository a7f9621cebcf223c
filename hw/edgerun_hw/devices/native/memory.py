"""Memory in one piece, from u-dma-buf (ikwzm/udmabuf), of which buffers are cut.

The overlay's ports are not coherent: they see what is in memory, and not what is in the
processors' caches. The memory is mapped cached, because results are read many times faster so, and
``flush`` and ``invalidate`` have the kernel clean and drop the lines of a buffer
(``sync_for_device`` and ``sync_for_cpu``; Readme.md of u-dma-buf, "Manual cache management").
Buffers start and end on pages, so that none shares a line with another.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import InputError
from edgerun_hw.devices.native.kernel import AS_ROOT, Kernel, attribute

CLASS = "sys/class/u-dma-buf"
DEFAULT_NAME = "udmabuf0"
PAGE_BYTES = 4096
LIMIT_BYTES = 1 << 32  # of an offset that u-dma-buf takes together with a length
TO_DEVICE, FROM_DEVICE = 1, 2
TO_DEVICE_ATTRIBUTE, FROM_DEVICE_ATTRIBUTE = "sync_for_device", "sync_for_cpu"
NO_MODULE = (
    "load the kernel module u-dma-buf, as in `insmod u-dma-buf.ko udmabuf0=BYTES` "
    "(docs/fpga-bringup.md), or choose host=pynq"
)


def devices(root: Path) -> list[str]:
    """Names of the u-dma-buf devices of a machine."""
    folder = root / CLASS
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


class ContiguousMemory:
    """All of one u-dma-buf device.

    Args:
        kernel: of the machine.
        name: of the device.

    Attributes:
        address: what the overlay calls its first byte.
        nbytes: its size.

    Raises:
        InputError: there is none of that name, it cannot be used, or this user may not open it.
    """

    def __init__(self, kernel: Kernel, name: str = DEFAULT_NAME) -> None:
        self._kernel, self._folder = kernel, f"{CLASS}/{name}"
        folder = kernel.root / self._folder
        names = devices(kernel.root)
        if name not in names:
            others = f"; there are {', '.join(names)}" if names else ""
            raise InputError(f"there is no u-dma-buf device {name}{others}: {NO_MODULE}")
        address, nbytes = attribute(folder / "phys_addr"), attribute(folder / "size")
        if address is None or not nbytes or address % PAGE_BYTES or nbytes > LIMIT_BYTES:
            raise InputError(
                f"u-dma-buf says nothing usable of {name} (phys_addr {address}, size {nbytes}): "
                "expected whole pages below 4 GiB"
            )
        if attribute(folder / "dma_coherent"):
            raise InputError(
                f"{name} was made for a device that sees the processors' caches (dma_coherent is "
                "1), which the overlay's ports do not: make it without the property dma-coherent"
            )
        self.address, self.nbytes = address, nbytes // PAGE_BYTES * PAGE_BYTES
        self._map = self._mapped(name)
        self._bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self._free = [(0, self.nbytes)]  # sorted (first, bytes)
        self._descriptors: list[int] = []

    def allocate(self, nbytes: int) -> ContiguousBuffer:
        """Allocates zeroed pages, first fit.

        Raises:
            MemoryError: there are not so many in one piece.
        """
        if nbytes < 1:
            raise ValueError(f"a buffer needs at least one byte, not {nbytes}")
        size = _pages(nbytes)
        for place, (first, length) in enumerate(self._free):
            if length >= size:
                self._free[place] = (first + size, length - size)
                self._bytes[first : first + size] = 0
                self.synchronise(TO_DEVICE, first, size)
                return ContiguousBuffer(self, first, nbytes)
        raise MemoryError(f"u-dma-buf has no {nbytes} bytes in one piece left of {self.nbytes}")

    def release(self, first: int, nbytes: int) -> None:
        """Takes a buffer's pages back; neighbours are joined."""
        joined: list[tuple[int, int]] = []
        for start, length in sorted([*self._free, (first, _pages(nbytes))]):
            if joined and sum(joined[-1]) == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + length)
            else:
                joined.append((start, length))
        self._free = joined

    def bytes_of(self, first: int, nbytes: int) -> NDArray[np.uint8]:
        """What the processor sees of a part, uint8 ``[nbytes]``."""
        return self._bytes[first : first + nbytes]

    def synchronise(self, direction: int, first: int, nbytes: int) -> None:
        """Has the caches written back for the device, or dropped for the processor.

        Args:
            direction: ``TO_DEVICE`` or ``FROM_DEVICE``.
            first: byte of the memory, a multiple of 16.
            nbytes: how many, a multiple of 16.

        Raises:
            OSError: the kernel refuses.
        """
        name = TO_DEVICE_ATTRIBUTE if direction == TO_DEVICE else FROM_DEVICE_ATTRIBUTE
        self._kernel.write_attribute(
            f"{self._folder}/{name}", f"0x{first:08X}{nbytes | direction << 2 | 1:08X}"
        )

    def open_attributes(self) -> tuple[int, int]:
        """Descriptors of ``sync_for_device`` and ``sync_for_cpu``, for native code; ours to close.

        Raises:
            OSError: they cannot be opened.
        """
        if not self._descriptors:
            folder, flags = self._kernel.root / self._folder, os.O_WRONLY | os.O_CLOEXEC
            for name in (TO_DEVICE_ATTRIBUTE, FROM_DEVICE_ATTRIBUTE):
                self._descriptors.append(os.open(folder / name, flags))
        return self._descriptors[0], self._descriptors[1]

    def close(self) -> None:
        """Unmaps the memory once no array refers to it."""
        while self._descriptors:
            os.close(self._descriptors.pop())
        self._bytes = np.zeros(0, np.uint8)
        self._free = []

    def _mapped(self, name: str) -> mmap.mmap:
        # Without O_SYNC: cached.
        try:
            descriptor = os.open(self._kernel.root / "dev" / name, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(
                f"the memory of u-dma-buf, /dev/{name}, cannot be opened: {error.strerror}; "
                f"{AS_ROOT}"
            ) from None
        try:
            return mmap.mmap(descriptor, self.nbytes)
        except (OSError, ValueError) as error:
            raise InputError(
                f"the memory of u-dma-buf, /dev/{name}, cannot be mapped: {error}"
            ) from None
        finally:
            os.close(descriptor)


class ContiguousBuffer:
    """Pages of a ``ContiguousMemory``; see ``port.Buffer``."""

    def __init__(self, memory: ContiguousMemory, first: int, nbytes: int) -> None:
        self._memory, self._first, self._nbytes = memory, first, nbytes
        self._array: NDArray[np.uint8] | None = memory.bytes_of(first, nbytes)

    @property
    def array(self) -> NDArray[np.uint8]:
        """What the processor sees, uint8 ``[nbytes]``."""
        if self._array is None:
            raise ValueError("this buffer was freed")
        return self._array

    @property
    def address(self) -> int:
        """What the overlay calls the first byte."""
        return self._memory.address + self._first

    @property
    def span(self) -> tuple[int, int]:
        """First byte in the memory, and bytes of its pages."""
        return self._first, _pages(self._nbytes)

    def flush(self) -> None:
        """Writes the caches back, so that the overlay sees what the processor wrote."""
        self._synchronise(TO_DEVICE)

    def hand_over(self) -> None:
        """The same: there is one memory for both."""
        self._synchronise(TO_DEVICE)

    def invalidate(self) -> None:
        """Drops the caches, so that the processor sees what the overlay wrote."""
        self._synchronise(FROM_DEVICE)

    def free(self) -> None:
        """Gives the pages back; a second call does nothing."""
        if self._array is not None:
            self._array = None
            self._memory.release(self._first, self._nbytes)

    def _synchronise(self, direction: int) -> None:
        self._memory.synchronise(direction, self._first, _pages(len(self.array)))


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES
