"""Makes and reads applications: the folder that xmutil and dfx-mgr take, with a manifest.

    <name>/<name>.bit.bin   the bitstream in the FPGA manager's byte order
    <name>/<name>.dtbo      the device tree overlay
    <name>/<name>.hwh       optional: Vivado's hardware description, by which pynq finds registers
    <name>/shell.json       what dfx-mgr wants to know
    <name>/manifest.json    digests, board, part, clocks, registers: ``manifest.py`` reads it
    <name>/manifest.json.sig   optional: Ed25519 signature of manifest.json, 64 bytes

The same inputs give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgerun import __version__
from edgerun.files.folder import atomic_folder, other_entries
from edgerun.files.plain import read_plain
from edgerun_hw.deploy import bitstream, devicetree, hardware, signature
from edgerun_hw.deploy.broker.application.manifest import (
    FORMAT,
    MANIFEST,
    MAX_BYTES,
    MAX_MANIFEST_BYTES,
    REGISTER_BYTES,
    SHELL,
    SIGNATURE,
    Manifest,
    read_manifest,
)
from edgerun_hw.deploy.broker.board.boards import BOARDS, Board
from edgerun_hw.deploy.broker.errors import BrokerError
from edgerun_hw.deploy.broker.formats.ed25519 import SIGNATURE_BYTES
from edgerun_hw.deploy.broker.protocol import MAX_FILE_BYTES, NAME, parse_object
from edgerun_hw.deploy.errors import PackageError
from edgerun_hw.overlay.register_map import ID_VALUE, VERSION_VALUE

DEFAULT_NAME = "edgerun-tlmm"
DEFAULT_SHELL = b'{\n  "shell_type": "XRT_FLAT",\n  "num_slots": "1"\n}\n'
SHELL_TYPES = ("XRT_FLAT", "PL_FLAT")


@dataclass(frozen=True)
class Sources:
    """What a package is made of.

    Attributes:
        bitstream: a .bit or .xsa file.
        board: name of the board that it is for.
        name: of the application.
        hwh: hardware description; None takes it out of the .xsa, or finds ``<bitstream>.hwh``.
        overlay: a .dtbo, or a .dts to compile; None writes one from the hardware description.
        shell: a shell.json; None writes one for a design without slots.
        base: bus address of the registers, if the hardware description does not say.
        key: file of a private key to sign with.
        release: counts up; a board that trusts keys takes none that is lower than the one it has.
    """

    bitstream: Path
    board: str
    overlay: Path | None = None
    name: str = DEFAULT_NAME
    hwh: Path | None = None
    shell: Path | None = None
    base: int | None = None
    key: Path | None = None
    release: int = 0


@dataclass(frozen=True)
class Package:
    """A complete application.

    Attributes:
        manifest: as read back.
        files: content by name, the manifest's own included.
        checksums: how many checksums the bitstream has, all right.
    """

    manifest: Manifest
    files: Mapping[str, bytes]
    checksums: int

    @property
    def is_signed(self) -> bool:
        """Whether there is a signature, right or wrong."""
        return SIGNATURE in self.files

    @property
    def overlay(self) -> Mapping[str, int]:
        """What the overlay was built with, by its hardware description; see ``Hardware``.

        Raises:
            PackageError: the description is broken.
        """
        description = self.files.get(self.manifest.description)
        if description is None:
            return {}
        return hardware.read_hwh(description, self.manifest.board.family).overlay

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(map(len, self.files.values()))


def make_package(sources: Sources) -> Package:
    """Reads and checks everything, and puts it together in memory.

    Raises:
        PackageError: something is broken, or does not fit the board.
        MissingDependencyError: an overlay's source needs dtc, a signature ``cryptography``.
    """
    board = _board(sources.board)
    if not NAME.fullmatch(sources.name):
        raise PackageError(f"{sources.name!r} is no name: up to 48 of a-z, 0-9, _ and -")
    bit, description = _read_design(sources)
    if not board.accepts_part(bit.part):
        raise PackageError(
            f"the bitstream is for {bit.part or 'no part'}, and {board.title} has {board.device}"
        )
    stream = bitstream.check(bit.data)
    if not board.accepts_idcode(stream.idcode):
        raise PackageError(
            f"the bitstream's IDCODE is {stream.idcode:#010x}, and {board.title} has "
            f"{board.idcode:#010x}: its header and its content are of different parts"
        )
    design = hardware.read_hwh(description, board.family) if description else hardware.Hardware()
    if sources.base is not None:
        design = replace(design, base=sources.base)
    if design.base is None:
        raise PackageError(
            "where the overlay's registers are is not known: pass the .hwh of the same build with "
            "--hwh, or the address with --base"
        )
    if design.base % REGISTER_BYTES or not board.has_window(design.base, REGISTER_BYTES):
        windows = " and ".join(
            f"{start:#x} to {start + span - 1:#x}" for start, span in board.windows
        )
        raise PackageError(
            f"the overlay's registers cannot be at {design.base:#x}: {board.title} has its logic "
            f"at {windows}, in steps of {REGISTER_BYTES:#x}"
        )
    files = {
        f"{sources.name}.bit.bin": bitstream.to_bin(bit.data),
        f"{sources.name}.dtbo": b"not yet",
        SHELL: _shell(sources.shell),
    }
    if description is not None:
        files[f"{sources.name}.hwh"] = description
    draft = _parsed(_manifest(sources, board, bit, design, files))
    files[draft.overlay] = _overlay(sources, draft)
    content = _manifest(sources, board, bit, design, files)
    manifest = _parsed(content)
    devicetree.check_overlay(files[manifest.overlay], manifest)
    files[MANIFEST] = content
    if sources.key is not None:
        files[SIGNATURE] = signature.sign(content, sources.key)
    return Package(manifest, files, stream.checksums)


def write_package(package: Package, out: Path, force: bool = False) -> None:
    """Writes the folder; it appears complete or not at all.

    Args:
        package: what it will hold.
        out: the folder.
        force: replace a package that is there; what else its folder holds stays.

    Raises:
        PackageError: there is something already, and ``force`` is not given or it is no package.
        InputError: the old folder has something else under the name of a file of the new one.
        StorageError: it cannot be written.
    """
    if out.exists() and not force:
        raise PackageError(f"{out} exists: choose another folder, or replace it with --force")
    if out.exists() and _own_names(out) is None:
        raise PackageError(
            f"{out} is not a package, so --force does not replace it: choose another folder, or "
            "delete it yourself"
        )
    with atomic_folder(out, replace=force, foreign=_foreign_entries) as folder:
        for name, data in package.files.items():
            (folder / name).write_bytes(data)


def _own_names(folder: Path) -> set[str] | None:
    """Names that a package's files may have, whichever edition wrote it; None if it is none."""
    try:
        about = parse_object(_read(folder / MANIFEST, MAX_MANIFEST_BYTES), MAX_MANIFEST_BYTES)
    except (PackageError, BrokerError):
        return None
    edition, application, board = (about.get(key) for key in ("format", "application", "board"))
    if type(edition) is not int or not 0 < edition <= FORMAT or not isinstance(board, str):
        return None
    if not isinstance(application, str) or not NAME.fullmatch(application):
        return None
    files = {kind if kind == SHELL else f"{application}{kind}" for kind in MAX_BYTES}
    return {MANIFEST, SIGNATURE, *files}


def _foreign_entries(folder: Path) -> list[str]:
    """Names of what lies in a package's folder and is no file of a package."""
    return other_entries(folder, _own_names(folder) or set())


def read_package(folder: Path, keys: Path | None = None) -> Package:
    """Reads a package back and checks all of it.

    Args:
        folder: the application's folder.
        keys: public keys of which one must have signed; None checks no signature.

    Raises:
        PackageError: it is incomplete, altered, or not signed as it must be.
    """
    if not (folder / MANIFEST).is_file():
        raise PackageError(f"{folder} is no package: make one with `edgerun fpga package`")
    content = _read(folder / MANIFEST, MAX_MANIFEST_BYTES)
    manifest = _parsed(content)
    files = {MANIFEST: content}
    if (folder / SIGNATURE).exists():
        files[SIGNATURE] = _read(folder / SIGNATURE, 4096)
        if len(files[SIGNATURE]) != SIGNATURE_BYTES:
            raise PackageError(
                f"{folder / SIGNATURE} is no signature, which has {SIGNATURE_BYTES} bytes: it is "
                "damaged; package it again"
            )
    if keys is not None:
        if SIGNATURE not in files:
            raise PackageError(f"{folder} is not signed, and --trust asks for a signature")
        signature.check_signature(content, files[SIGNATURE], keys)
    for name, (size, digest) in manifest.files.items():
        data = _read(folder / name, MAX_FILE_BYTES)
        if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
            raise PackageError(
                f"{folder / name} is not what the manifest says: it is damaged or was changed; "
                "package it again"
            )
        files[name] = data
    stream = _check_content(manifest, files)
    return Package(manifest, files, stream.checksums)


def _check_content(manifest: Manifest, files: Mapping[str, bytes]) -> bitstream.Configuration:
    """Looks into the files: a manifest can be right about files that are wrong."""
    stream = bitstream.check(bitstream.to_bin(files[manifest.bitstream]))
    if not manifest.board.accepts_idcode(stream.idcode):
        raise PackageError(
            f"the bitstream's IDCODE is {stream.idcode:#010x}, and {manifest.board.title} has "
            f"{manifest.board.idcode:#010x}"
        )
    devicetree.check_overlay(files[manifest.overlay], manifest)
    _check_shell(files[SHELL])
    return stream


def _board(name: str) -> Board:
    if name not in BOARDS:
        raise PackageError(f"board {name!r} is not known: there are {', '.join(BOARDS)}")
    return BOARDS[name]


def _read_design(sources: Sources) -> tuple[bitstream.Bitstream, bytes | None]:
    content, hwh = _read_source(sources.bitstream, 2 * MAX_FILE_BYTES), sources.hwh
    description = None
    if sources.bitstream.suffix == ".xsa":
        content, description = hardware.read_xsa(content)
    elif hwh is None and sources.bitstream.with_suffix(".hwh").is_file():
        hwh = sources.bitstream.with_suffix(".hwh")
    if hwh is not None:
        description = _read_source(hwh, hardware.MAX_HWH_BYTES)
    return bitstream.parse_bit(content), description


def _overlay(sources: Sources, draft: Manifest) -> bytes:
    """The compiled overlay: the given one, or one written for what the manifest says."""
    if sources.overlay is None:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / f"{sources.name}.dtso"
            source.write_text(devicetree.write_overlay(draft))
            return devicetree.compile_overlay(source)
    data = _read_source(sources.overlay, MAX_BYTES[".dtbo"])
    is_source = sources.overlay.suffix in (".dts", ".dtso")
    return devicetree.compile_overlay(sources.overlay) if is_source else data


def _shell(file: Path | None) -> bytes:
    data = _read_source(file, MAX_BYTES[SHELL]) if file else DEFAULT_SHELL
    _check_shell(data)
    return data


def _check_shell(data: bytes) -> None:
    try:
        value = parse_object(data, MAX_BYTES[SHELL])
    except BrokerError as error:
        raise PackageError(f"{SHELL} is unusable: {error}") from None
    if value.get("shell_type") not in SHELL_TYPES:
        raise PackageError(
            f"{SHELL} has the shell_type {value.get('shell_type')!r}; a design without slots has "
            f"{' or '.join(SHELL_TYPES)}"
        )


def _manifest(
    sources: Sources,
    board: Board,
    bit: bitstream.Bitstream,
    design: hardware.Hardware,
    files: Mapping[str, bytes],
) -> bytes:
    record: dict[str, Any] = {
        "format": FORMAT,
        "application": sources.name,
        "release": sources.release,
        "board": board.name,
        "part": bit.part,
        "design": f"{bit.design} {bit.date} {bit.time}".strip(),
        "files": {
            file: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for file, data in files.items()
        },
        "clocks": design.clocks,
        "port_widths": design.port_widths,
        "registers": {"base": design.base, "id": ID_VALUE, "version": VERSION_VALUE},
        "tool": f"edgerun {__version__}",
    }
    return json.dumps(record, indent=2, sort_keys=True).encode() + b"\n"


def _parsed(content: bytes) -> Manifest:
    try:
        return read_manifest(content)
    except BrokerError as error:
        raise PackageError(str(error)) from None


def _read(file: Path, limit: int) -> bytes:
    """Reads a file of a package: a regular one, no link and no pipe that never ends."""
    try:
        return read_plain(file, limit)
    except OSError as error:
        raise PackageError(f"{file} cannot be read: {error.strerror}") from None


def _read_source(file: Path, limit: int) -> bytes:
    """Reads a file that the user has named; a link to one is as good."""
    return _read(Path(os.path.realpath(file)), limit)
