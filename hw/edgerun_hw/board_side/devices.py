"""The boards that a worker can open, by name; what follows the colon is theirs to read."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgerun_hw.board_side.lock import BoardLock, remote_path
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.errors import OverlayError

SEPARATOR = "|"


def _pynq(bitfile: str) -> Tlmm:
    """A bitstream that is loaded onto this board."""
    return _locked(BoardLock(), bitfile, download=True)


def _unless_deployed(argument: str) -> Tlmm:
    """``STAMP|RECORD|BITFILE``: like ``_pynq``, if the file RECORD still has this stamp."""
    stamp, record, bitfile = argument.split(SEPARATOR, 2)
    lock = BoardLock()
    # Whoever deploys replaces the record and holds the lock: from here on it stays as it is.
    if stamp_of(record) != stamp:
        lock.release()
        raise OverlayError(
            f"an application was deployed on this board while {Path(bitfile).name} was opened, and "
            "was not replaced: start again"
        )
    return _locked(lock, bitfile, download=True)


def stamp_of(file: str) -> str:
    """What changes whenever a file is replaced; "" if there is none."""
    try:
        status = os.stat(file)
    except OSError:
        return ""
    return f"{status.st_ino}.{status.st_mtime_ns}"


def _deployed(bitstream: str) -> Tlmm:
    """A ``NAME.bit.bin`` that is loaded already, with ``NAME.hwh`` beside it."""
    with tempfile.TemporaryDirectory(prefix="edgerun-") as folder:
        named = name_for_pynq(Path(bitstream), Path(folder))
        return _locked(BoardLock(), str(named), download=False)


def name_for_pynq(bitstream: Path, folder: Path) -> Path:
    """Links ``NAME.bit.bin`` and ``NAME.hwh`` into ``folder`` under names that pynq looks for.

    The device tree overlay is left out: it is applied already, and pynq would apply it again.
    """
    name = bitstream.name.removesuffix(".bit.bin")
    (folder / f"{name}.bin").symlink_to(bitstream)
    (folder / f"{name}.hwh").symlink_to(bitstream.with_name(f"{name}.hwh"))
    return folder / f"{name}.bin"


def _locked(lock: BoardLock, bitfile: str, **options: Any) -> Tlmm:
    """Loads an overlay and holds the lock until it is closed."""
    try:
        from edgerun_hw.board_side.pynq_driver import load_overlay

        return load_overlay(bitfile, on_close=lock.release, **options)
    except BaseException:
        lock.release()
        raise


def _remote(argument: str) -> Tlmm:
    """``HOST|BITFILE``: a board that PYNQ.remote serves at another host."""
    from pynq.pl_server.remote_device import RemoteDevice

    host, _, bitfile = argument.partition(SEPARATOR)
    device, lock = RemoteDevice(ip_addr=host), BoardLock(remote_path(host))
    with tempfile.TemporaryDirectory(prefix="edgerun-") as folder:
        named = name_by_digest(Path(bitfile), Path(folder))
        return _locked(lock, str(named), device=device)


def name_by_digest(bitfile: Path, folder: Path) -> Path:
    """Links a bitstream and what lies beside it into ``folder``, under a name with its digest.

    PYNQ.remote does not upload a file whose name the board has, whatever is in it.
    """
    digest = hashlib.sha256(bitfile.read_bytes()).hexdigest()[:16]
    for suffix in (bitfile.suffix, ".hwh", ".dtbo"):
        source = bitfile.with_suffix(suffix)
        if source.is_file():
            (folder / f"{bitfile.stem}-{digest}{suffix}").symlink_to(source.resolve())
    return folder / f"{bitfile.stem}-{digest}{bitfile.suffix}"


DEVICES: Mapping[str, Callable[[str], Tlmm]] = MappingProxyType(
    {
        "pynq": _pynq,
        "unless-deployed": _unless_deployed,
        "deployed": _deployed,
        "remote": _remote,
    }
)
