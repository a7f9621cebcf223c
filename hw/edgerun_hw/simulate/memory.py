"""Parameters of the modelled DRAM channel behind the overlay's memory ports.

The model itself is ``hw/tb/ddr.h``, which says what it covers. It is a model: what it yields is to
be labelled "modelled", never "measured".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class DdrConfig:
    """One DRAM channel and the path from the overlay to it.

    Times are nanoseconds, so that the same memory can be put behind overlays of different clocks.

    Attributes:
        bytes_per_second: of the data bus: transfers a second times its width.
        clock_mhz: clock of the overlay.
        banks: banks of the channel, a power of two.
        row_bytes: bytes of a row over the whole width, a power of two. Addresses go through a row,
            then to the next bank, then to the next row of the first bank.
        line_bytes: bytes of one access: burst length times bus width, a power of two.
        trcd_ns: activate to access.
        trp_ns: precharge.
        tras_ns: least time a row is open.
        tfaw_ns: four activates take at least this.
        trefi_ns: from refresh to refresh; 0 for a memory without.
        trfc_ns: length of a refresh.
        turnaround_ns: data bus idle when it changes direction.
        latency_ns: access to first beat at the port: CAS latency, controller and interconnect.
        row_hit_limit: accesses to an open row that may overtake one to another row of its bank.
        write_batch: lines written before reads that wait get the bus again.

    Raises:
        ValueError: a value is out of range.
    """

    bytes_per_second: float = 19.2e9
    clock_mhz: float = 300.0
    banks: int = 8
    row_bytes: int = 8192
    line_bytes: int = 64
    trcd_ns: float = 14.16
    trp_ns: float = 14.16
    tras_ns: float = 32.0
    tfaw_ns: float = 30.0
    trefi_ns: float = 7800.0
    trfc_ns: float = 350.0
    turnaround_ns: float = 15.0
    latency_ns: float = 165.0
    row_hit_limit: int = 64
    write_batch: int = 16

    def __post_init__(self) -> None:
        for name, most in (("banks", 64), ("row_bytes", 1 << 20), ("line_bytes", 1 << 10)):
            value = getattr(self, name)
            if not 1 <= value <= most or value & (value - 1):
                raise ValueError(f"{name} must be a power of two up to {most}, not {value}")
        if not 16 <= self.line_bytes <= self.row_bytes:
            raise ValueError(f"line_bytes must be from 16 to row_bytes, not {self.line_bytes}")
        for name in ("bytes_per_second", "clock_mhz", "row_hit_limit", "write_batch"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in self.__dataclass_fields__:
            if name.endswith("_ns") and not 0 <= getattr(self, name) <= 1e6:
                raise ValueError(f"{name} must be from 0 to 1e6, not {getattr(self, name)}")

    @property
    def bytes_per_cycle(self) -> float:
        """Bytes of the data bus in one cycle of the overlay."""
        return self.bytes_per_second / (self.clock_mhz * 1e6)

    def cycles(self, nanoseconds: float) -> float:
        """Cycles of the overlay in so many nanoseconds."""
        return nanoseconds * self.clock_mhz / 1e3


# A KV260's memory: four MT40A512M16 (DDR4, x16, 8 Gb: 8 banks, 2 KiB rows, tRFC 350 ns) make 64
# bits at 2400 MT/s, with 17-17-17 timing. One access of 64 bytes takes exactly one cycle at
# 300 MHz. Of latency_ns, 14 are CAS latency; the rest is an assumption about the processing
# system's ports and controller, as turnaround_ns is one between read-to-write and write-to-read.
DDR_PRESETS: Mapping[str, DdrConfig] = MappingProxyType({"kv260": DdrConfig()})
