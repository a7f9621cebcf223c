"""Clocks and port widths: the few registers of the processors that an overlay depends on.

Addresses and fields are those of UG1087 (Zynq UltraScale+: CRL_APB, FPD_SLCR, AFIFM) and UG585
appendix B (Zynq-7000: slcr, axi_hp). A bitstream does not set them when it is loaded at run time;
the boot loader has set them for another design.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

MASTERS = {"M_AXI_HPM0_FPD": (0xFD615000, 8), "M_AXI_HPM1_FPD": (0xFD615000, 10)}
MASTERS["M_AXI_HPM0_LPD"] = (0xFF419000, 8)
SLAVES = {
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
    "zynqmp": {**{name: place[0] for name, place in MASTERS.items()}, **SLAVES},
    "zynq7": _ZYNQ7_SLAVES,
}
_WRITE_CHANNEL = 0x14
MASTER_CODES, SLAVE_CODES = {32: 0, 64: 1, 128: 2}, {128: 0, 64: 1, 32: 2}
SLCR_UNLOCK = (0xF8000008, 0xDF0D)
CLOCK_REGISTERS = {"zynqmp": (0xFF5E00C0, 4), "zynq7": (0xF8000170, 0x10)}
_CLOCK_MASKS = {"zynqmp": 0x013F3F07, "zynq7": 0x03F03F30}
_CLOCK_ENABLED = 1 << 24  # CLKACT; Zynq-7000 has no such bit


# What the kernel calls the clocks of the logic, from 0 on, and where it says their rates.
_CLOCK_NAMES = {"zynqmp": "pl{}_ref", "zynq7": "fclk{}"}
RATES = "sys/kernel/debug/clk"
# Rounding of PLLs and dividers makes up to 0.01 %; the next divisor would make 1 % and more.
RATE_TOLERANCE = 0.005


@dataclass(frozen=True)
class Clock:
    """How a clock of the logic is divided from its source.

    Attributes:
        source: the PLL, a key of ``SOURCES``.
        divisors: first and second.
        hertz: the rate that this gives, and for which the logic was built.
    """

    source: str
    divisors: tuple[int, int]
    hertz: int

    def agrees(self, hertz: int) -> bool:
        """Whether a clock of this rate is the one that the logic was built for."""
        return abs(hertz - self.hertz) <= self.hertz * RATE_TOLERANCE


class Texts(Protocol):
    """What can read attributes of the kernel."""

    def read_text(self, path: str) -> str:
        """Reads an attribute; empty if there is none."""
        ...


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
    base, stride = CLOCK_REGISTERS[family]
    source, (first, second) = SOURCES[family][clock.source], clock.divisors
    address, mask = base + stride * CLOCKS.index(name), _CLOCK_MASKS[family]
    if family == "zynqmp":
        return address, mask, _CLOCK_ENABLED | second << 16 | first << 8 | source
    return address, mask, second << 20 | first << 8 | source << 4


def width_updates(family: str, widths: Mapping[str, int]) -> list[Update]:
    """What sets the port widths."""
    updates: list[Update] = []
    for name, bits in sorted(widths.items()):
        if family == "zynq7":
            # AXI_HP: bit 0 of both control registers makes the port 32 bits wide.
            addresses = (_ZYNQ7_SLAVES[name], _ZYNQ7_SLAVES[name] + _WRITE_CHANNEL)
            updates += [(address, 1, int(bits == 32)) for address in addresses]
        elif name in MASTERS:
            address, lsb = MASTERS[name]
            updates.append((address, 3 << lsb, MASTER_CODES[bits] << lsb))
        else:
            address, code = SLAVES[name], SLAVE_CODES[bits]
            updates += [(address, 3, code), (address + _WRITE_CHANNEL, 3, code)]
    return updates


def held(words: Words, updates: Iterable[Update]) -> tuple[Update, ...]:
    """What undoes ``updates``: the same bits of the same registers, as they are now."""
    places = dict.fromkeys((address, mask) for address, mask, _ in updates)
    return tuple((address, mask, words.read_word(address) & mask) for address, mask in places)


def _is_setting(family: str, address: int, mask: int) -> bool:
    """Whether these bits are a clock or a port width; what is put back comes from a file."""
    base, stride = CLOCK_REGISTERS[family]
    clocks = {(base + stride * i, _CLOCK_MASKS[family]) for i in range(len(CLOCKS))}
    widths = width_updates(family, dict.fromkeys(PORTS[family], WIDTHS[0]))
    return (address, mask) in clocks | {(place, bits) for place, bits, _ in widths}


def apply(words: Words, updates: Iterable[Update], family: str) -> None:
    """Writes the updates and reads them back.

    Registers of Zynq-7000 are unlocked and never locked again: Linux unlocks them when it starts
    (zynq_early_slcr_init), and its drivers of clocks and of the logic count on that ever after.

    Raises:
        FailureError: a register does not keep what was written, or is none of the table above.
    """
    updates = list(updates)
    for address, mask, value in updates:
        if not _is_setting(family, address, mask) or value & ~mask:
            raise FailureError(
                f"{value:#x} in bits {mask:#x} of register {address:#010x} is no clock or port "
                "width of this board: the helper's record of them was altered"
            )
    if family == "zynq7" and updates:
        words.write_word(*SLCR_UNLOCK)
    for address, mask, value in updates:
        words.write_word(address, words.read_word(address) & ~mask & 0xFFFFFFFF | value)
        actual = words.read_word(address) & mask
        if actual != value:
            raise FailureError(
                f"register {address:#010x} holds {actual:#x} where {value:#x} was written: the "
                "kernel or the firmware does not let clocks and port widths be set"
            )


def rate_file(family: str, name: str) -> str:
    """Where the kernel says the rate of a clock of ``CLOCKS``, in Hz."""
    return f"{RATES}/{_CLOCK_NAMES[family].format(CLOCKS.index(name))}/clk_rate"


def check_rates(texts: Texts, clocks: Mapping[str, Clock], family: str) -> None:
    """Checks that the logic's clocks run as it was built for; a slow one would go unnoticed.

    Raises:
        FailureError: one does not, or the kernel does not say.
    """
    for name, clock in sorted(clocks.items()):
        text = texts.read_text(rate_file(family, name))
        if not text.isdecimal():
            raise FailureError(
                f"the kernel does not say at which rate clock {name} runs: mount debugfs "
                "(mount -t debugfs none /sys/kernel/debug), then try again"
            )
        if not clock.agrees(int(text)):
            raise FailureError(
                f"clock {name} runs at {megahertz(int(text))} and the logic was built for "
                f"{megahertz(clock.hertz)}: something else on this board sets it"
            )


def megahertz(hertz: int) -> str:
    """A rate for people."""
    return f"{hertz / 1e6:.9g} MHz"
