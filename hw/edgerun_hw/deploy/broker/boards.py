"""The boards that can be deployed to, and how each is recognised.

IDCODE is what the configuration logic compares with the bitstream's. On Zynq UltraScale+ that is
the one of the logic's TAP (UG570, table 1-5), not the one of the processors' TAP that Linux shows
as the SoC's revision. Windows are the address ranges that the processors reach the logic through
(UG1085 table 10-1, UG585 table 4-1): nothing else is ever read as an overlay's register.
"""

from __future__ import annotations

from dataclasses import dataclass

IDCODE_MASK = 0x0FFFFFFF  # bits 31:28 are the silicon's revision
MIB = 1 << 20
_ZYNQMP_WINDOWS = ((0x8000_0000, 512 * MIB), (0xA000_0000, 512 * MIB))
_ZYNQ7_WINDOWS = ((0x4000_0000, 1024 * MIB), (0x8000_0000, 1024 * MIB))


@dataclass(frozen=True)
class Board:
    """A board.

    Attributes:
        name: as on the command line and in ``hw/boards``.
        title: for people.
        compatible: device tree names, any of which identifies the board (or its module).
        part: device and package as in a bitstream's header, without speed and temperature grade.
        idcode: of the logic, without the silicon's revision.
        family: "zynqmp" or "zynq7".
        windows: (base, bytes) of what the processors see of the logic.
        silicon: address of a register with the silicon's IDCODE, where the device tree is vague.
    """

    name: str
    title: str
    compatible: tuple[str, ...]
    part: str
    idcode: int
    family: str
    windows: tuple[tuple[int, int], ...]
    silicon: int | None = None

    def accepts_part(self, part: str) -> bool:
        """Whether a bitstream made for ``part`` fits; Vivado leaves out "xc" for 7 series."""
        mine, given = self.part.lower(), part.lower()
        return given == mine or given.startswith(mine + "-") or "xc" + given == mine

    def accepts_idcode(self, idcode: int) -> bool:
        """Whether the logic would take a bitstream with this IDCODE."""
        return idcode & IDCODE_MASK == self.idcode & IDCODE_MASK

    def has_window(self, base: int, size: int) -> bool:
        """Whether addresses ``base`` to ``base + size`` belong to the logic."""
        return any(start <= base and base + size <= start + span for start, span in self.windows)


BOARDS = (
    Board(
        "kv260",
        "AMD Kria KV260",
        ("xlnx,zynqmp-sk-kv260", "xlnx,zynqmp-smk-k26", "xlnx,zynqmp-sm-k26"),
        "xck26-sfvc784",
        0x04A49093,
        "zynqmp",
        _ZYNQMP_WINDOWS,
    ),
    Board(
        "ultra96v2",
        "Avnet Ultra96-V2",
        ("avnet,ultra96", "avnet,ultra96v2", "xlnx,zynqmp-zcu100"),
        "xczu3eg-sbva484",
        0x04A42093,
        "zynqmp",
        _ZYNQMP_WINDOWS,
    ),
    Board(
        "pynq-z2",
        "TUL PYNQ-Z2",
        # PYNQ's own images name the processor only; the silicon's IDCODE then has to do.
        ("tul,pynq-z2", "xlnx,pynq-z2", "xlnx,zynq-7000"),
        "xc7z020clg400",
        0x03727093,
        "zynq7",
        _ZYNQ7_WINDOWS,
        silicon=0xF8000530,  # slcr.PSS_IDCODE, UG585 appendix B.28
    ),
)
BY_NAME = {board.name: board for board in BOARDS}


def identify(compatible: tuple[str, ...]) -> Board | None:
    """Finds the board whose device tree says ``compatible``; revisions (-rev1, -revA) count."""
    for board in BOARDS:
        for entry in compatible:
            if any(entry == name or entry.startswith(name + "-rev") for name in board.compatible):
                return board
    return None
