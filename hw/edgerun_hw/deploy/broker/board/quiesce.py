"""Stills an overlay of ours before its logic is replaced.

Logic that vanishes in the middle of a burst leaves the memory controller waiting for the rest of
it, and with it everything that uses the port: the board hangs. A soft reset has the overlay ask for
nothing more and wait until memory has answered all that it was asked for (``tlmm_reset.sv``).

Registers are touched only behind an ID that is ours: whatever else may be there, a write to it is a
write to something unknown.
"""

from __future__ import annotations

from typing import Protocol

from ..errors import RefusalError

# As in hw/edgerun_hw/registers/registers.toml.
ID, CONTROL, STATUS = 0x000, 0x010, 0x014
SOFT_RESET, IDLE, RESETTING = 1, 1, 2
PAUSE_S, ATTEMPTS = 0.02, 100


class Bus(Protocol):
    """Words of the bus, and time."""

    def read_word(self, address: int) -> int:
        """Reads."""
        ...

    def write_word(self, address: int, value: int) -> None:
        """Writes."""
        ...

    def sleep(self, seconds: float) -> None:
        """Waits."""
        ...


def quiesce(bus: Bus, base: int, identity: int) -> bool:
    """Resets the overlay at ``base`` and waits until it has nothing under way.

    Returns:
        Whether there is an overlay of ours; nothing is written if not.

    Raises:
        RefusalError: its transfers do not come to an end.
    """
    if bus.read_word(base + ID) != identity:
        return False
    bus.write_word(base + CONTROL, SOFT_RESET)
    for attempt in range(ATTEMPTS):
        if attempt:
            bus.sleep(PAUSE_S)
        is_done = not bus.read_word(base + CONTROL) & SOFT_RESET
        if is_done and bus.read_word(base + STATUS) & (IDLE | RESETTING) == IDLE:
            return True
    raise RefusalError(
        "the overlay that runs has transfers under way that do not end, and replacing it now could "
        "hang the board: nothing was changed; start the board again, then try again"
    )
