"""What the native host asks of the kernel: a window of registers, and attributes of devices.

Paths are below a root, so that a folder can stand for a machine. ``simulate/board/dev.py`` is a
kernel whose registers are a simulation's.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import Protocol

import numpy as np

from edgerun.errors import InputError

MEMORY_DEVICE = "dev/mem"
UIO = "sys/class/uio"
PAGE_BYTES = mmap.PAGESIZE
AS_ROOT = "run as root"


class Window(Protocol):
    """Registers that are mapped."""

    def read(self, offset: int) -> int:
        """Reads the 32-bit register at ``offset`` bytes."""

    def write(self, offset: int, value: int) -> None:
        """Writes the 32-bit register at ``offset`` bytes."""

    def close(self) -> None:
        """Unmaps them."""


class Kernel(Protocol):
    """Registers and attributes of one machine.

    Attributes:
        root: of its file system.
    """

    root: Path

    def map_registers(self, base: int, nbytes: int) -> Window:
        """Maps the registers at a bus address.

        Raises:
            InputError: this user cannot reach them.
        """

    def write_attribute(self, path: str, text: str) -> None:
        """Writes an attribute of a device.

        Raises:
            OSError: the kernel refuses.
        """

    def sleep(self, seconds: float) -> None:
        """Waits."""


class MappedWindow:
    """A window in a device file.

    Args:
        path: of the file.
        start: bytes of the file before the window; a multiple of the page.
        nbytes: of the window.

    Attributes:
        address: at which it is mapped.

    Raises:
        OSError: it cannot be opened or mapped.
    """

    def __init__(self, path: Path, start: int, nbytes: int) -> None:
        # O_SYNC makes the kernel map it as device memory: uncached, in order.
        descriptor = os.open(path, os.O_RDWR | os.O_SYNC | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(descriptor, nbytes, offset=start)
        finally:
            os.close(descriptor)
        # As words: a device must see one access of four bytes, not four of one.
        self._view = memoryview(self._map)
        self._words = self._view.cast("I")
        self.address = int(np.frombuffer(self._view, np.uint8).ctypes.data)

    def read(self, offset: int) -> int:
        """Reads the 32-bit register at ``offset`` bytes."""
        return self._words[offset // 4]

    def write(self, offset: int, value: int) -> None:
        """Writes the 32-bit register at ``offset`` bytes."""
        self._words[offset // 4] = value

    def close(self) -> None:
        """Unmaps it."""
        self._words.release()
        self._view.release()
        self._map.close()


class LinuxKernel:
    """The kernel of this machine.

    Args:
        root: of its file system; another folder in tests.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def map_registers(self, base: int, nbytes: int) -> Window:
        """Maps the registers at a bus address: through a UIO device that has them, else /dev/mem.

        Raises:
            InputError: there is neither, or this user may not open it.
        """
        uio = find_uio(self.root, base, nbytes)
        path, start = (uio, 0) if uio else (self.root / MEMORY_DEVICE, base)
        shown = f"/{path.relative_to(self.root)}"
        nbytes = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
        try:
            return MappedWindow(path, start, nbytes)
        except FileNotFoundError:
            raise InputError(
                f"the overlay's registers at {base:#x} cannot be mapped: there is no {shown}, and "
                "no UIO device has them; use a kernel with CONFIG_DEVMEM, or host=pynq"
            ) from None
        except PermissionError:
            raise InputError(
                f"the overlay's registers at {base:#x} cannot be mapped: this user may not open "
                f"{shown}, or the kernel keeps it closed (lockdown, strict devmem): {AS_ROOT}"
            ) from None
        except (OSError, ValueError) as error:  # ValueError: the file ends before them
            raise InputError(
                f"the overlay's registers at {base:#x} cannot be mapped through {shown}: {error}"
            ) from None

    def write_attribute(self, path: str, text: str) -> None:
        """Writes an attribute of a device, in one call.

        Raises:
            OSError: the kernel refuses.
        """
        descriptor = os.open(self.root / path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def sleep(self, seconds: float) -> None:
        """Waits."""
        time.sleep(seconds)


def find_uio(root: Path, base: int, nbytes: int) -> Path | None:
    """The UIO device whose first map begins at ``base`` and has ``nbytes``, if there is one."""
    for folder in sorted((root / UIO).glob("uio*")):
        values = [attribute(folder / "maps/map0" / name) for name in ("addr", "size")]
        if values[0] == base and (values[1] or 0) >= nbytes:
            return root / "dev" / folder.name
    return None


def attribute(path: Path) -> int | None:
    """The number in an attribute, as C writes it; None if there is none."""
    try:
        return int(path.read_text().strip(), 0)
    except (OSError, ValueError):
        return None
