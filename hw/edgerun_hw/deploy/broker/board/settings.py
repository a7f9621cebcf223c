"""Clocks and port widths: the few registers of the processors that an overlay depends on.

Addresses and fields are those of UG1087 (Zynq UltraScale+: CRL_APB, FPD_SLCR, AFIFM) and UG585
appendix B (Zynq-7000: slcr, axi_hp). A bitstream does not set them when it is loaded at run time;
the boot loader has set them for another design.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..errors import FailureError

CLOCKS = ("pl0", "pl1", "pl2", "pl3")
SOURCES = {"zynqmp": {"IOPLL": 0, "RPLL": 2, "DPLL": 3}, "zynq7": {"IO": 0, "ARM": 2, "DDR": 3}}
WIDTHS = (32, 64, 128)
# PLLs run at up to 1.6 GHz (DS925, DS187): a bound of ours that keeps clocks at 400 MHz and below.
MIN_DIVISION = 4

Update = tuple[int, int, int]
"""Address, mask and value of the masked bits."""

_MASTERS = {"M_AXI_HPM0_FPD": (0xFD615000, 8), "M_AXI_HPM1_FPD": (0xFD615000, 10)}
_MASTERS["M_AXI_HPM0_LPD"] = (0xFF419000, 8)
_SLAVES = {
    "S_AXI_HPC0_FPD": 0xFD360000,
    "S_AXI_HPC1_FPD": 0xFD370000,
    "S_AXI_HP0_FPD": 0xFD380000,
    "S_AXI_HP1_FPD": 0xFD390000,
    "S_AXI_HP2_FPD": 0xFD3A0000,
    "S_AXI_HP3_FPD": 0xFD3B0000,
    "S_AXI_LPD": 0xFF9B0000,
}
_ZYNQ7_SLAVES = {f"S_AXI_HP{i}": 0xF8008000 + 0x1000 * i for i in range(4)}
PORTS: Mapping[str, Mapping[str, int]] = {
    "zynqmp": {**{name: place[0] for name, place in _MASTERS.items()}, **_SLAVES},
    "zynq7": _ZYNQ7_SLAVES,
}
_WRITE_CHANNEL = 0x14
_MASTER_CODES, _SLAVE_CODES = {32: 0, 64: 1, 128: 2}, {128: 0, 64: 1, 32: 2}
_SLCR_UNLOCK, _SLCR_LOCK = (0xF8000008, 0xDF0D), (0xF8000004, 0x767B)
_CLOCK_REGISTERS = {"zynqmp": (0xFF5E00C0, 4), "zynq7": (0xF8000170, 0x10)}
_CLOCK_ENABLED = 1 << 24  # CLKACT; Zynq-7000 has no such bit


@dataclass(frozen=True)
class Clock:
    """How a clock of the logic is divided from its source."""

    source: str
    divisors: tuple[int, int]


class Words(Protocol):
    """What can read and write a 32-bit word of the bus."""

    def read_word(self, address: int) -> int:
        """Reads."""
        ...

    def write_word(self, address: int, value: int) -> None:
        """Writes."""
        ...


def clock_updates(family: str, clocks: Mapping[str, Clock]) -> list[Update]:
    """What sets the clocks."""
    return [_clock_update(family, name, clock) for name, clock in sorted(clocks.items())]


def _clock_update(family: str, name: str, clock: Clock) -> Update:
    base, stride = _CLOCK_REGISTERS[family]
    source, (first, second) = SOURCES[family][clock.source], clock.divisors
    address = base + stride * CLOCKS.index(name)
    if family == "zynqmp":
        return address, 0x013F3F07, _CLOCK_ENABLED | second << 16 | first << 8 | source
    return address, 0x03F03F30, second << 20 | first << 8 | source << 4


def width_updates(family: str, widths: Mapping[str, int]) -> list[Update]:
    """What sets the port widths."""
    updates: list[Update] = []
    for name, bits in sorted(widths.items()):
        if family == "zynq7":
            # AXI_HP: bit 0 of both control registers makes the port 32 bits wide.
            addresses = (_ZYNQ7_SLAVES[name], _ZYNQ7_SLAVES[name] + _WRITE_CHANNEL)
            updates += [(address, 1, int(bits == 32)) for address in addresses]
        elif name in _MASTERS:
            address, lsb = _MASTERS[name]
            updates.append((address, 3 << lsb, _MASTER_CODES[bits] << lsb))
        else:
            address, code = _SLAVES[name], _SLAVE_CODES[bits]
            updates += [(address, 3, code), (address + _WRITE_CHANNEL, 3, code)]
    return updates


def apply(words: Words, updates: list[Update], family: str) -> None:
    """Writes the updates and reads them back.

    Raises:
        FailureError: a register does not keep what was written.
    """
    if family == "zynq7" and updates:
        words.write_word(*_SLCR_UNLOCK)
    for address, mask, value in updates:
        words.write_word(address, words.read_word(address) & ~mask & 0xFFFFFFFF | value)
        actual = words.read_word(address) & mask
        if actual != value:
            raise FailureError(
                f"register {address:#010x} holds {actual:#x} where {value:#x} was written: the "
                "kernel or the firmware does not let clocks and port widths be set"
            )
    if family == "zynq7" and updates:
        words.write_word(*_SLCR_LOCK)
