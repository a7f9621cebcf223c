"""The few registers of a Zynq UltraScale+ that pynq touches while it loads an overlay."""

from __future__ import annotations

# Clock controllers of the low-power and the full-power domain (UG1087, CRL_APB and CRF_APB).
CRL_APB = 0xFF5E_0000
CRF_APB = 0xFD1A_0000
# Widths of the ports between processor and logic: FPD_SLCR and the AXI FIFOs (UG1087, AFIFM).
WINDOWS = (
    range(CRL_APB, CRL_APB + 0x1000, 4),
    range(CRF_APB, CRF_APB + 0x1000, 4),
    range(0xFD61_5000, 0xFD61_6000, 4),
    range(0xFF41_9000, 0xFF41_A000, 4),
    *(range(base, base + 0x1000, 4) for base in range(0xFD36_0000, 0xFD3C_0000, 0x1_0000)),
    range(0xFF9B_0000, 0xFF9B_1000, 4),
)
PLL = 45 << 8  # a feedback divisor of 45: 1500 MHz from 33.333 MHz
CLOCK = 1 << 24 | 1 << 16 | 15 << 8  # running, 100 MHz from that
POWER_ON = {
    CRL_APB + 0x20: PLL,  # IOPLL
    CRL_APB + 0x30: PLL,  # RPLL
    CRF_APB + 0x20: PLL,  # APLL
    CRF_APB + 0x2C: PLL,  # DPLL
    CRF_APB + 0x38: PLL,  # VPLL
    CRF_APB + 0x60: 1 << 24 | 1 << 8,  # the processors' clock
    **{CRL_APB + 0xC0 + 4 * i: CLOCK for i in range(4)},
}


class ProcessorRegisters:
    """Memory behind the registers above; everything else is a bus error, as on a board."""

    def __init__(self) -> None:
        self._values = dict(POWER_ON)

    def read(self, address: int) -> int:
        """Reads a word.

        Raises:
            OSError: nothing is there.
        """
        self._check(address)
        return self._values.get(address, 0)

    def write(self, address: int, value: int) -> None:
        """Writes a word.

        Raises:
            OSError: nothing is there.
        """
        self._check(address)
        self._values[address] = value

    def _check(self, address: int) -> None:
        if not any(address in window for window in WINDOWS):
            raise OSError(f"bus error: nothing answers at address {address:#x}")
