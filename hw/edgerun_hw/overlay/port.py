"""What a driver needs of a device: registers, memory and time.

A ``DevicePort`` is a board (``board_side``), a simulation or a piece of software (``simulate``). An
``Overlay`` is one level up: commands. It is the driver itself (``driver.Tlmm``) or a driver in
another process (``devices/client.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay.command import Capabilities, Command


class Buffer(Protocol):
    """Memory that both the processor and the device can reach.

    They need not see each other's writes: ``flush`` after writing ``array`` and before the device
    reads, ``invalidate`` after the device wrote and before reading ``array``. Nor are they kept
    apart: what was flushed must not be changed until the commands that read it are complete.
    ``hand_over`` is a last ``flush``: but for ``address`` and ``free`` the buffer is not used any
    more, so that memory of the processor's side can go.

    Attributes:
        array: uint8 [nbytes], what the processor sees.
        address: what the device calls the first byte; a multiple of 16.
    """

    @property
    def array(self) -> NDArray[np.uint8]: ...
    @property
    def address(self) -> int: ...
    def flush(self) -> None: ...
    def hand_over(self) -> None: ...
    def invalidate(self) -> None: ...
    def free(self) -> None: ...


class DevicePort(Protocol):
    """Registers, memory and time of one device."""

    def read(self, offset: int) -> int:
        """Reads the 32-bit register at ``offset`` bytes."""

    def write(self, offset: int, value: int) -> None:
        """Writes the 32-bit register at ``offset`` bytes; ``value`` is 0 to 2**32 - 1."""

    def allocate(self, nbytes: int) -> Buffer:
        """Allocates zeroed memory.

        Raises:
            MemoryError: there is not that much.
        """

    def wait(self, cycles: int) -> None:
        """Lets up to about ``cycles`` clock cycles pass, fewer when the interrupt line rises."""

    def close(self) -> None:
        """Gives everything back; of buffers nothing but ``free`` may be called any more."""


@dataclass(frozen=True)
class Ticket:
    """A submitted command: the ``number``-th since the ``epoch``-th reset."""

    epoch: int
    number: int


@dataclass(frozen=True)
class Counters:
    """Counters of the overlay since the last reset, modulo 2^32.

    ``busy`` is ``lookups`` and the three stalls, and what it takes to start and to drain.
    """

    cycles: int
    busy: int
    lookups: int
    stall_weights: int
    stall_tables: int
    stall_output: int
    read_beats: int
    write_beats: int


class Overlay(Protocol):
    """A device that takes commands, here or in another process.

    Errors are those of ``errors.py``. After one of them nothing but ``reset`` and ``close``
    works, and every command that was not complete is lost.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    def allocate(self, nbytes: int) -> Buffer: ...

    def submit(self, command: Command) -> Ticket: ...

    def submit_all(self, commands: Sequence[Command]) -> Ticket: ...

    def wait(self, ticket: Ticket) -> None: ...

    def reset(self) -> None: ...

    def counters(self) -> Counters: ...

    def close(self) -> None: ...
