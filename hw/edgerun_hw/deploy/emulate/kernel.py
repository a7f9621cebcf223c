"""What the kernel reads out of an overlay and a clock register, for emulated boards."""

from __future__ import annotations

import errno
import os

from edgerun_hw.deploy.broker.application.overlay import FAMILIES
from edgerun_hw.deploy.broker.board import settings
from edgerun_hw.deploy.broker.errors import BrokerError
from edgerun_hw.deploy.broker.formats import fdt

# What divides to the logic's clocks here, and what those run at after a start of the board.
PLL_HZ = {"zynqmp": 1_500_000_000, "zynq7": 1_000_000_000}
START_HZ = 99_999_999
# What the boot firmware leaves in a clock's register: the source divided by 15 or 10, switched on.
START_WORDS = {"zynqmp": 1 << 24 | 1 << 16 | 15 << 8, "zynq7": 1 << 20 | 10 << 8}


def firmware_name(overlay: bytes) -> str:
    """The bitstream that an overlay names; the kernel takes any tree that is well formed.

    Raises:
        OSError: it is not.
    """
    names = (
        node.properties["firmware-name"]
        for node in _nodes(overlay)
        if "firmware-name" in node.properties
    )
    return next(names, b"").rstrip(b"\0").decode("latin-1")


def assigned_rates(overlay: bytes, family: str) -> dict[str, int]:
    """Rates in Hz that an overlay gives to clocks of the logic."""
    first, rates = FAMILIES[family].clocks[1].start, {}
    for node in _nodes(overlay):
        rate, clock = (node.properties.get(f"assigned-clock{s}", b"") for s in ("-rates", "s"))
        if len(rate) == 4 and len(clock) == 8:
            number = int.from_bytes(clock[4:], "big") - first
            rates[settings.CLOCKS[number]] = int.from_bytes(rate, "big")
    return rates


def divided_rate(family: str, address: int, value: int) -> tuple[str, int] | None:
    """Which clock of the logic has what rate once ``value`` is in the register at ``address``."""
    clock = _clock_at(family, address)
    if clock is None:
        return None
    second = value >> (16 if family == "zynqmp" else 20) & 63
    return clock, PLL_HZ[family] // max(1, (value >> 8 & 63) * second)


def start_word(family: str, address: int) -> int:
    """What a register of the processors holds before anybody has written to it."""
    return START_WORDS[family] if _clock_at(family, address) else 0


def _clock_at(family: str, address: int) -> str | None:
    base, stride = settings.CLOCK_REGISTERS[family]
    number, rest = divmod(address - base, stride)
    return None if rest or not 0 <= number < len(settings.CLOCKS) else settings.CLOCKS[number]


def _nodes(overlay: bytes) -> list[fdt.Node]:
    try:
        return [node for _, node in fdt.read_tree(overlay).walk()]
    except BrokerError:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL)) from None
