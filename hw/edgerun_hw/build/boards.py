"""The boards that the overlay is built for, as ``hw/boards/<name>/board.toml`` describes them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgerun.errors import InputError, MissingDependencyError
from edgerun_hw.build.sources import hardware_folder
from edgerun_hw.overlay.geometry import PRESETS, Geometry

FAMILIES = ("zynqmp", "zynq7")
PORT_BITS = (32, 64, 128)


@dataclass(frozen=True, slots=True)
class Resources:
    """What the programmable logic of a part has."""

    lut: int
    ff: int
    bram36: int
    uram: int
    dsp: int


@dataclass(frozen=True, slots=True)
class Board:
    """One board.

    Attributes:
        name: its folder in ``hw/boards``.
        title: what its maker calls it.
        family: ``zynqmp`` or ``zynq7``: which processing system its part has.
        part: as Vivado knows it.
        idcode: of its logic, without the silicon's revision.
        board_parts: Vivado board files to try, in this order.
        board_connections: connector and carrier of a module, or empty.
        compatible: what the root of its device tree calls the board, without revisions.
        modules: the same of its module and processor, which other boards have as well.
        geometry: name of the geometry that is built by default, the attention unit included.
        dram_gb_per_s: what the memory moves at its data sheet's best, in 10^9 bytes/s.
        image: the system on it that docs/fpga-bringup.md is about.
        remote_only: why its processors cannot run edgerun; "" where they can.
        pl_clock_mhz: clock asked of the processing system for the logic; a goal.
        clock_mhz: least and most that any clock of the logic may have.
        weight_ports: processor ports that weights are read from, in order.
        data_port: processor port of activations and results.
        port_bits: width of those ports.
        control_port: processor port that reaches the registers.
        control_address: where the registers are.
        control_bytes: how much is mapped there.
        resources: what the part has.
        folder: where its files lie.
    """

    name: str
    title: str
    family: str
    part: str
    idcode: int
    board_parts: tuple[str, ...]
    board_connections: tuple[str, ...]
    compatible: tuple[str, ...]
    modules: tuple[str, ...]
    geometry: str
    dram_gb_per_s: float
    image: str
    pl_clock_mhz: int
    clock_mhz: tuple[int, int]
    weight_ports: tuple[str, ...]
    data_port: str
    port_bits: int
    control_port: str
    control_address: int
    control_bytes: int
    resources: Resources
    folder: Path
    remote_only: str = ""

    def __post_init__(self) -> None:
        low, high = self.clock_mhz
        problems = {
            "family": self.family in FAMILIES,
            "ports.bits": self.port_bits in PORT_BITS,
            "ports.weights": 1 <= len(self.weight_ports) <= 4,
            "ports.data": self.data_port not in self.weight_ports,
            "clock": 0 < low <= self.pl_clock_mhz <= high <= 500,
            "geometry": self.geometry in PRESETS,
            "idcode": 0 < self.idcode < 1 << 32,
            "control.address": self.control_address % self.control_bytes == 0,
        }
        wrong = [key for key, right in problems.items() if not right]
        if wrong:
            raise InputError(f"{self.folder / 'board.toml'}: {', '.join(wrong)} cannot be right")

    @property
    def overlay(self) -> Geometry:
        """What is built for it unless something else is asked for: ``geometry``."""
        return PRESETS[self.geometry]


def board_names() -> tuple[str, ...]:
    """Returns the names of all boards."""
    return tuple(
        sorted(file.parent.name for file in hardware_folder("boards").glob("*/board.toml"))
    )


def board_records() -> list[dict[str, Any]]:
    """What deployment needs of every board: the attributes of the helper's ``Board``."""
    return [_record(load_board(name)) for name in board_names()]


def _record(board: Board) -> dict[str, Any]:
    copied = ("name", "title", "compatible", "modules", "part", "idcode", "family")
    record = {name: getattr(board, name) for name in copied}
    return {**record, "clock_hz": [mhz * 1_000_000 for mhz in board.clock_mhz]}


def load_board(name: str) -> Board:
    """Reads a board's description.

    Raises:
        InputError: there is no such board, or its description has an error.
    """
    names = board_names()
    if name not in names:
        close = difflib.get_close_matches(name, names, 1, 0.4)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"
        raise InputError(f"there is no board {name!r}: {hint}")
    folder = hardware_folder("boards") / name
    return parse_board(read_toml(folder / "board.toml"), folder)


def parse_board(fields: dict[str, Any], folder: Path) -> Board:
    """Makes a board of the contents of its ``board.toml``.

    Raises:
        InputError: a key is missing, unknown or of the wrong kind.
    """
    try:
        flat = {key: value for key, value in fields.items() if not isinstance(value, dict)}
        lists = ("board_parts", "board_connections", "compatible", "modules")
        flat |= {key: tuple(flat[key]) for key in lists}
        ports, control, clock = fields["ports"], fields["control"], fields["clock"]
        return Board(
            name=folder.name,
            folder=folder,
            pl_clock_mhz=clock["pl_mhz"],
            clock_mhz=(clock["min_mhz"], clock["max_mhz"]),
            weight_ports=tuple(ports["weights"]),
            data_port=ports["data"],
            port_bits=ports["bits"],
            control_port=ports["control"],
            control_address=control["address"],
            control_bytes=control["bytes"],
            resources=Resources(**fields["resources"]),
            **flat,
        )
    except KeyError as error:
        raise InputError(f"{folder / 'board.toml'}: the key {error} is missing") from error
    except TypeError as error:
        raise InputError(f"{folder / 'board.toml'}: {error}") from error


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a TOML file.

    Raises:
        InputError: it is no TOML.
        MissingDependencyError: this Python is older than 3.11 and has no ``tomli``.
    """
    try:
        import tomllib
    except ImportError:
        try:
            import tomli as tomllib  # type: ignore[import-not-found, no-redef, unused-ignore]
        except ImportError as error:
            raise MissingDependencyError(
                "reading board files with Python 3.10 needs tomli: pip install tomli"
            ) from error
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
