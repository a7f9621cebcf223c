"""The boards that can be deployed to, and how each is recognised.

There is one table of boards, ``hw/boards/<name>/board.toml``. In edgerun it is read when somebody
asks (``edgerun_hw/deploy/__init__.py`` says how); into the helper it is packed
(``broker_file.py``), because a board has no reader of TOML before Python 3.11. What all parts of a
family have in common stands here.

IDCODE is what the configuration logic compares with the bitstream's. On Zynq UltraScale+ that is
the one of the logic's TAP (UG570, table 1-5), not the one of the processors' TAP that Linux shows
as the SoC's revision. Windows are the address ranges that the processors reach the logic through
(UG1085 table 10-1, UG585 table 4-1): nothing else is ever read as an overlay's register.
"""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

IDCODE_MASK = 0x0FFFFFFF  # bits 31:28 are the silicon's revision
MIB = 1 << 20
TABLE = "boards.json"
Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ProcessingSystem:
    """What the processors of all parts of a family have.

    Attributes:
        windows: (base, bytes) of what the processors see of the logic.
        silicon: address of a register with the silicon's IDCODE, where there is one.
    """

    windows: tuple[tuple[int, int], ...]
    silicon: int | None = None


PROCESSING_SYSTEMS: Mapping[str, ProcessingSystem] = {
    "zynqmp": ProcessingSystem(((0x8000_0000, 512 * MIB), (0xA000_0000, 512 * MIB))),
    # slcr.PSS_IDCODE, UG585 appendix B.28
    "zynq7": ProcessingSystem(((0x4000_0000, 1024 * MIB), (0x8000_0000, 1024 * MIB)), 0xF8000530),
}


@dataclass(frozen=True)
class Board:
    """A board.

    Attributes:
        name: as on the command line: its folder in ``hw/boards``.
        title: for people.
        compatible: device tree names of the board, without revisions.
        modules: device tree names of its module and processor, which other boards have as well.
        part: as Vivado knows it, with speed and temperature grade.
        idcode: of the logic, without the silicon's revision.
        family: key of ``PROCESSING_SYSTEMS``.
        clock_hz: least and most that a clock of its logic may have.
    """

    name: str
    title: str
    compatible: tuple[str, ...]
    modules: tuple[str, ...]
    part: str
    idcode: int
    family: str
    clock_hz: tuple[int, int]

    @property
    def windows(self) -> tuple[tuple[int, int], ...]:
        """(base, bytes) of what the processors see of the logic."""
        return PROCESSING_SYSTEMS[self.family].windows

    @property
    def silicon(self) -> int | None:
        """Address of a register with the silicon's IDCODE, where there is one."""
        return PROCESSING_SYSTEMS[self.family].silicon

    @property
    def device(self) -> str:
        """Device and package: the part without speed and temperature grade."""
        return re.split(r"-\d", self.part, maxsplit=1)[0].lower()

    def accepts_part(self, part: str) -> bool:
        """Whether a bitstream made for ``part`` fits; Vivado leaves out "xc" for 7 series."""
        mine, other = self.device, part.lower()
        return other == mine or other.startswith(mine + "-") or "xc" + other == mine

    def accepts_idcode(self, idcode: int) -> bool:
        """Whether the logic would take a bitstream with this IDCODE."""
        return idcode & IDCODE_MASK == self.idcode & IDCODE_MASK

    def accepts_clock(self, hertz: int) -> bool:
        """Whether a clock of the logic may have this rate."""
        return self.clock_hz[0] <= hertz <= self.clock_hz[1]

    def has_window(self, base: int, size: int) -> bool:
        """Whether addresses ``base`` to ``base + size`` belong to the logic."""
        return any(start <= base and base + size <= start + span for start, span in self.windows)


class BoardTable(Mapping[str, Board]):
    """All boards by name, read when the first is asked for.

    Args:
        read: gives a record for each, with the attributes of ``Board``.
    """

    def __init__(self, read: Callable[[], Records]) -> None:
        self._read = read
        self._boards: dict[str, Board] | None = None

    def use(self, read: Callable[[], Records]) -> None:
        """Reads another table from now on."""
        self._read, self._boards = read, None

    def _by_name(self) -> dict[str, Board]:
        if self._boards is None:
            self._boards = {record["name"]: _board(record) for record in self._read()}
        return self._boards

    def __getitem__(self, name: str) -> Board:
        return self._by_name()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name())

    def __len__(self) -> int:
        return len(self._by_name())


def _board(record: Mapping[str, Any]) -> Board:
    low, high = record["clock_hz"]
    lists = {name: tuple(record[name]) for name in ("compatible", "modules")}
    return Board(**{**record, **lists, "clock_hz": (low, high)})


def _packed() -> Records:
    """The table that was packed with the helper."""
    data = pkgutil.get_data(__package__, TABLE)
    assert data is not None
    records: Records = json.loads(data)
    return records


BOARDS = BoardTable(_packed)


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
    for board in BOARDS.values():
        if _names(compatible[0], board.compatible):
            return board
    chosen = BOARDS.get(configured or "")
    if chosen is not None and all(_names(entry, chosen.modules) for entry in compatible):
        return chosen
    return None


def _names(entry: str, names: tuple[str, ...]) -> bool:
    return any(entry == name or entry.startswith(name + "-rev") for name in names)
