"""Writes the folder that Vivado builds an overlay from: sources, Tcl, settings of one build."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from edgerun.errors import InputError, StorageError
from edgerun.files.output import write_output
from edgerun.files.plain import read_plain
from edgerun_hw.build.sources import digest, hardware_folder, wrapped_rtl_files
from edgerun_hw.overlay.register_map import VERSION_RESET, VLNV

if TYPE_CHECKING:
    from edgerun_hw.build.boards import Board
    from edgerun_hw.overlay.geometry import Geometry

TOP = "tlmm_wrapper"
ABOUT = "project.json"
SCRIPTS = ("common.tcl", "build.tcl", "tlmm.xdc")
_MAX_ABOUT_BYTES = 1 << 16
DEFAULT_JOBS = 4
# That a weight port reads ahead in two BRAM36.
BLOCK_RAM_BEATS = 512


def geometry_for(board: Board, geometry: Geometry) -> Geometry:
    """Fits a geometry to the board it will be built for.

    Raises:
        InputError: it has more weight ports than the board has memory ports for them.
    """
    if geometry.ports > len(board.weight_ports):
        raise InputError(
            f"this geometry reads weights over {geometry.ports} ports, but {board.title} has "
            f"{len(board.weight_ports)} for them: choose one with fewer, e.g. {board.geometry}"
        )
    if board.family == "zynq7":  # its memory ports take addresses of 32 bits
        geometry = dataclasses.replace(geometry, addr_bits=32)
    if not board.resources.uram:  # results do not depend on how far weights are read ahead
        read_ahead = min(geometry.read_ahead, BLOCK_RAM_BEATS)
        geometry = dataclasses.replace(geometry, read_ahead=read_ahead)
    return geometry


def write_project(
    board: Board, geometry: Geometry, folder: Path, *, jobs: int = DEFAULT_JOBS
) -> Path:
    """Writes everything that Vivado needs into ``folder``; earlier files of ours are replaced.

    What Vivado made in ``folder/work`` and ``folder/out`` stays.

    Args:
        board: where the overlay shall run.
        geometry: parameters of the hardware.
        folder: where to write; made if missing.
        jobs: processes that Vivado may start.

    Returns:
        The script to give to ``vivado -mode batch -source``.

    Raises:
        InputError: the geometry does not fit the board, or ``folder`` holds something else.
        StorageError: ``folder`` cannot be written.
    """
    geometry = geometry_for(board, geometry)
    _refuse_foreign(folder)
    rtl = wrapped_rtl_files()
    scripts = [hardware_folder("boards") / name for name in SCRIPTS]
    about = {
        "board": board.name,
        "geometry": dataclasses.asdict(geometry),
        "digest": digest([*rtl, *scripts, board.folder / "board.toml"], geometry),
        "vlnv": VLNV,
    }
    settings = settings_tcl(board, geometry, [file.name for file in rtl], jobs)
    copies = {f"rtl/{file.name}": file for file in rtl} | {file.name: file for file in scripts}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # First, and whole: by it the folder is known to be ours.
        write_output(folder / ABOUT, json.dumps(about, indent=2).encode() + b"\n", mode=0o644)
        (folder / "settings.tcl").write_text(settings, "utf-8")
        (folder / "rtl").mkdir(exist_ok=True)
        for name, file in copies.items():
            shutil.copyfile(file, folder / name)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror}") from None
    return folder / "build.tcl"


def settings_tcl(board: Board, geometry: Geometry, rtl: list[str], jobs: int) -> str:
    """Returns the text of ``settings.tcl``.

    Args:
        board: where the overlay shall run.
        geometry: already fitted to the board.
        rtl: names of the sources in the folder ``rtl`` beside the file.
        jobs: processes that Vivado may start.
    """
    folder = "[file dirname [file normalize [info script]]]"
    values = {
        "name": board.name,
        "part": board.part,
        "board_parts": board.board_parts,
        "board_connections": board.board_connections,
        "family": board.family,
        "pl_mhz": board.pl_clock_mhz,
        "weight_ports": board.weight_ports,
        "data_port": board.data_port,
        "port_bits": board.port_bits,
        "control_port": board.control_port,
        "control_address": board.control_address,
        "control_bytes": board.control_bytes,
        "top": TOP,
        "vlnv": VLNV,
        "version": VERSION_RESET,
        "jobs": jobs,
        "ports": geometry.ports,
        "parameters": [str(part) for pair in geometry.parameters().items() for part in pair],
    }
    lines = [
        f"# Written by `edgerun fpga build --board {board.name}`; do not edit.",
        "array set settings {",
        *(f"    {name:<18}{_tcl(value)}" for name, value in values.items()),
        "}",
        f"set settings(rtl) [lmap name {_tcl(rtl)} {{file join {folder} rtl $name}}]",
        f"set settings(constraints) [list [file join {folder} tlmm.xdc]]",
        "",
    ]
    return "\n".join(lines)


def find_vivado() -> Path | None:
    """Returns Vivado's executable, or None if it is not on the search path."""
    program = shutil.which("vivado")
    return Path(program) if program else None


def _refuse_foreign(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()) and not _is_ours(folder / ABOUT):
        raise InputError(
            f"{folder} holds files that `edgerun fpga build` did not write: name an empty folder"
        )
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: name a folder")


def _is_ours(about: Path) -> bool:
    """Whether a file says what ``write_project`` does, of whichever edition."""
    try:
        content = json.loads(read_plain(about, _MAX_ABOUT_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.keys() >= {"board", "vlnv"}


def _tcl(value: object) -> str:
    """A Tcl word. Names of parts, ports and files never hold braces or backslashes."""
    if isinstance(value, list | tuple):
        return "{" + " ".join(str(part) for part in value) + "}"
    return "{" + str(value) + "}" if " " in str(value) else str(value)
