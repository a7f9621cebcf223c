"""The manifest of a packaged application, read strictly; tool and helper use the same reader."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..board.boards import BOARDS, Board
from ..board.settings import CLOCKS, MIN_DIVISION, PORTS, SOURCES, WIDTHS, Clock, megahertz
from ..errors import ProtocolError, RefusalError
from ..formats import fdt
from ..protocol import DIGEST, MAX_FILE_BYTES, NAME, parse_object

FORMAT = 3
MANIFEST, SIGNATURE, SHELL = "manifest.json", "manifest.json.sig", "shell.json"
MAX_MANIFEST_BYTES = 16 * 1024
MAX_BYTES = {
    ".bit.bin": MAX_FILE_BYTES,
    ".dtbo": fdt.MAX_BYTES,
    SHELL: 1 << 16,
    ".hwh": 16 << 20,
}
OPTIONAL = (".hwh",)
MAX_TEXT = 200
REGISTER_BYTES = 4096


@dataclass(frozen=True)
class Manifest:
    """What an application is and needs.

    Attributes:
        application: name of the folder.
        release: counts up from one release to the next, to tell which is older.
        board: what it was made for.
        part: from the bitstream's header.
        files: size in bytes and sha256 by name.
        clocks: by "pl0" to "pl3"; empty leaves them as they are.
        port_widths: bits by port, such as "S_AXI_HP0_FPD".
        base: bus address of the overlay's registers.
        identity: expected value of the register at offset 0.
        version: expected value of the register at offset 4.
        digest: sha256 of the manifest's bytes; identifies the application.
    """

    application: str
    release: int
    board: Board
    part: str
    files: Mapping[str, tuple[int, str]]
    clocks: Mapping[str, Clock]
    port_widths: Mapping[str, int]
    base: int
    identity: int
    version: int
    digest: str

    @property
    def bitstream(self) -> str:
        """Name of the bitstream's file."""
        return f"{self.application}.bit.bin"

    @property
    def overlay(self) -> str:
        """Name of the device tree overlay's file."""
        return f"{self.application}.dtbo"

    @property
    def description(self) -> str:
        """Name of the hardware description's file, which not every application has."""
        return f"{self.application}.hwh"


def file_kinds(application: str) -> dict[str, str]:
    """Kinds of the files that a manifest may list, keys of ``MAX_BYTES``, by their names."""
    return {kind if kind == SHELL else f"{application}{kind}": kind for kind in MAX_BYTES}


def read_manifest(data: bytes) -> Manifest:
    """Reads and checks ``manifest.json``.

    Raises:
        RefusalError: it is malformed, or asks for something outside the table of boards.
    """
    try:
        value = parse_object(data, MAX_MANIFEST_BYTES)
    except ProtocolError as error:
        raise RefusalError(f"manifest.json is unusable: {error}") from None
    _require(
        value.get("format") == FORMAT,
        f"its format is {value.get('format')!r} and not {FORMAT}: package it again, and install "
        "the helper again with `edgerun fpga broker`, both with the same edgerun",
    )
    required = {"format", "application", "release", "board", "part", "design", "files", "clocks"}
    required |= {"port_widths", "registers", "tool"}
    _require(value.keys() == required, "it lacks entries or has unknown ones")
    application, board = value["application"], BOARDS.get(_text(value["board"]))
    _require(isinstance(application, str) and bool(NAME.fullmatch(application)), "its name")
    _require(
        board is not None,
        f"board {value['board']!r} is not known; on a board, install the helper again with "
        "`edgerun fpga broker`",
    )
    assert board is not None
    part = _text(value["part"])
    _require(board.accepts_part(part), f"part {part!r} is not {board.device!r} of {board.title}")
    _text(value["design"]), _text(value["tool"])
    registers = _mapping(value["registers"], "registers")
    _require(registers.keys() == {"base", "id", "version"}, "its registers")
    base = _word(registers["base"], 40)
    _require(base % REGISTER_BYTES == 0 and board.has_window(base, REGISTER_BYTES), "its base")
    return Manifest(
        application=application,
        release=_word(value["release"], 31),
        board=board,
        part=part,
        files=_files(value["files"], application),
        clocks=_clocks(value["clocks"], board),
        port_widths=_widths(value["port_widths"], board),
        base=base,
        identity=_word(registers["id"], 32),
        version=_word(registers["version"], 32),
        digest=hashlib.sha256(data).hexdigest(),
    )


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise RefusalError(f"manifest.json is unusable: {what}")


def _mapping(value: Any, what: str) -> dict[str, Any]:
    _require(isinstance(value, dict), what)
    return dict(value)


def _text(value: Any) -> str:
    _require(isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable(), "a text")
    return str(value)


def _word(value: Any, bits: int) -> int:
    _require(type(value) is int and 0 <= value < 1 << bits, "a number")
    return int(value)


def _files(value: Any, application: str) -> dict[str, tuple[int, str]]:
    entries, files = _mapping(value, "files"), {}
    names = file_kinds(application)
    required = {name for name, kind in names.items() if kind not in OPTIONAL}
    _require(required <= entries.keys() <= set(names), f"its files are not {', '.join(names)}")
    for name in entries:
        kind, entry = names[name], _mapping(entries[name], name)
        _require(entry.keys() == {"size", "sha256"}, name)
        size, digest = entry["size"], entry["sha256"]
        _require(type(size) is int and 0 < size <= MAX_BYTES[kind], f"the size of {name}")
        _require(isinstance(digest, str) and bool(DIGEST.fullmatch(digest)), f"sha256 of {name}")
        files[name] = (size, digest)
    return files


def _clocks(value: Any, board: Board) -> dict[str, Clock]:
    clocks = {}
    for name, entry in _mapping(value, "clocks").items():
        _require(name in CLOCKS, f"clock {name!r}")
        entry = _mapping(entry, name)
        _require(entry.keys() == {"source", "divisors", "hertz"}, name)
        divisors = entry["divisors"]
        _require(isinstance(divisors, list) and len(divisors) == 2, name)
        _require(all(type(d) is int and 1 <= d <= 63 for d in divisors), f"divisors of {name}")
        source = _text(entry["source"])
        _require(source in SOURCES[board.family], f"the source of {name}")
        _require(divisors[0] * divisors[1] >= MIN_DIVISION, f"{name}, which would be too fast")
        hertz = _word(entry["hertz"], 31)
        _require(
            board.accepts_clock(hertz),
            f"clock {name} of {megahertz(hertz)}; {board.title} takes "
            f"{' to '.join(map(megahertz, board.clock_hz))}",
        )
        clocks[name] = Clock(source, (divisors[0], divisors[1]), hertz)
    return clocks


def _widths(value: Any, board: Board) -> dict[str, int]:
    widths = _mapping(value, "port_widths")
    for name, width in widths.items():
        _require(name in PORTS[board.family], f"port {name!r}")
        _require(type(width) is int and width in WIDTHS, f"the width of {name}")
    return widths
