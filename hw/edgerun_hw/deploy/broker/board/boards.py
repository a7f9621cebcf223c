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
        compatible: device tree names of the board.
        part: device and package as in a bitstream's header, without speed and temperature grade.
        idcode: of the logic, without the silicon's revision.
        family: "zynqmp" or "zynq7".
        windows: (base, bytes) of what the processors see of the logic.
        vague: device tree names of its module and processor, which other boards have as well.
        silicon: address of a register with the silicon's IDCODE, where there is one.
    """

    name: str
    title: str
    compatible: tuple[str, ...]
    part: str
    idcode: int
    family: str
    windows: tuple[tuple[int, int], ...]
    vague: tuple[str, ...] = ()
    silicon: int | None = None

    def accepts_part(self, part: str) -> bool:
        """Whether a bitstream made for ``part`` fits; Vivado leaves out "xc" for 7 series."""
        mine, other = self.part.lower(), part.lower()
        return other == mine or other.startswith(mine + "-") or "xc" + other == mine

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
        ("xlnx,zynqmp-sk-kv260",),
        "xck26-sfvc784",
        0x04A49093,
        "zynqmp",
        _ZYNQMP_WINDOWS,
        vague=("xlnx,zynqmp-smk-k26", "xlnx,zynqmp-sm-k26", "xlnx,zynqmp"),
    ),
    Board(
        "ultra96v2",
        "Avnet Ultra96-V2",
        ("avnet,ultra96", "avnet,ultra96v2"),
        "xczu3eg-sbva484",
        0x04A42093,
        "zynqmp",
        _ZYNQMP_WINDOWS,
        vague=("xlnx,zynqmp",),
    ),
    Board(
        "pynq-z2",
        "TUL PYNQ-Z2",
        ("tul,pynq-z2", "xlnx,pynq-z2"),
        "xc7z020clg400",
        0x03727093,
        "zynq7",
        _ZYNQ7_WINDOWS,
        vague=("xlnx,zynq-7000",),
        silicon=0xF8000530,  # slcr.PSS_IDCODE, UG585 appendix B.28
    ),
)
BY_NAME = {board.name: board for board in BOARDS}


def identify(compatible: tuple[str, ...], configured: str | None = None) -> Board | None:
    """Finds the board that this is.

    The first entry of a device tree's ``compatible`` is the one that says most; those behind it
    are shared with other boards (Devicetree Specification 0.4, section 2.3.1). Revisions (-rev1,
    -revA) count.

    Args:
        compatible: of the device tree's root.
        configured: name of the board that its owner says it is. Counts only where the device tree
            names nothing but a module or processor that this board has: the tree of another
            carrier cannot be overruled.
    """
    if not compatible:
        return None
    for board in BOARDS:
        if _names(compatible[0], board.compatible):
            return board
    chosen = BY_NAME.get(configured or "")
    if chosen is not None and all(_names(entry, chosen.vague) for entry in compatible):
        return chosen
    return None


def _names(entry: str, names: tuple[str, ...]) -> bool:
    return any(entry == name or entry.startswith(name + "-rev") for name in names)
