"""Keeps object code on disk, in a folder per version of the sources, the compiler and the CPU.

An entry is one line of JSON (digest, kernel's arguments) and the code, which will be run. So folder
and file must be such that nobody else could have written them (``files/private.py``), and the
digest covers all that decides what is run: version, name, arguments and code. An entry that is
damaged or not ours counts as missing: it is compiled again and replaced. A folder that is not
safe, or cannot be written, costs time and one warning.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass, field
from pathlib import Path

from edgerun.files.private import (
    UnsafeError,
    advice,
    private_folder,
    read_private,
    write_atomically,
)

logger = logging.getLogger(__name__)

PREFIX = "kernels-"
FOLDERS_KEPT = 4  # other versions of edgerun may share the cache
MAX_ENTRY_BYTES = 64 << 20  # a kernel has some ten thousand


@dataclass(frozen=True, slots=True)
class Entry:
    """Object code, and the arguments it reads, as declared."""

    code: bytes
    arguments: str


@dataclass(slots=True)
class ObjectCache:
    """Entries by name in ``root / (PREFIX + version)``.

    Attributes:
        root: may not exist yet.
        version: of all that the entries depend on.
        all_kept: whether every entry that it matters to keep was written so far.
    """

    root: Path
    version: str
    all_kept: bool = True
    _is_open: bool = field(default=False, init=False)
    _has_warned: bool = field(default=False, init=False)

    @property
    def folder(self) -> Path:
        """Where the entries of this version lie."""
        return self.root / (PREFIX + self.version)

    def load(self, name: str) -> Entry | None:
        """Returns an entry, or None where there is none, or none that may be used."""
        if not self._is_open and not self.folder.is_dir():
            return None
        try:
            self._open_folder()
            header, _, code = read_private(self.folder / name, MAX_ENTRY_BYTES).partition(b"\n")
            digest, arguments = _parse(header)
        except UnsafeError as error:
            self._warn(error)
            return None
        except (OSError, ValueError, RecursionError):
            return None
        entry = Entry(code, arguments)
        return entry if digest == self._digest(name, entry) else None

    def save(self, name: str, entry: Entry, *, warn: bool = True) -> None:
        """Writes an entry; warns once where that is not possible, unless it is of little use."""
        digest = self._digest(name, entry)
        header = json.dumps({"sha256": digest, "arguments": entry.arguments}).encode()
        try:
            self._open_folder()
            write_atomically(self.folder / name, header + b"\n" + entry.code)
        except OSError as error:
            if warn:
                self.all_kept = False
                self._warn(error)

    def _digest(self, name: str, entry: Entry) -> str:
        """Of an entry and of where it belongs: code under another name takes other arguments."""
        place = json.dumps([self.version, name, entry.arguments]).encode()
        return hashlib.sha256(place + b"\n" + entry.code).hexdigest()

    def _open_folder(self) -> None:
        """Makes the folder or checks it, once.

        Raises:
            OSError: it cannot be made, or somebody else could have written to it.
        """
        if self._is_open:
            return
        is_new = not self.folder.is_dir()
        private_folder(self.folder)
        self._is_open = True
        if is_new:
            self._remove_old_versions()

    def _remove_old_versions(self) -> None:
        import shutil

        others = [path for path in self.root.glob(PREFIX + "*") if path != self.folder]
        others.sort(key=_modified, reverse=True)
        for path in others[FOLDERS_KEPT - 1 :]:
            shutil.rmtree(path, ignore_errors=True)

    def _warn(self, error: OSError) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        if self._is_open and isinstance(error, UnsafeError):
            logger.warning("%s is compiled again: %s", error.filename, error.strerror)
            return
        logger.warning(
            "compiled kernels cannot be kept in %s (%s): every start will compile them; %s",
            self.folder,
            error.strerror or error,
            advice(error),
        )


def _parse(header: bytes) -> tuple[str, str]:
    """Digest and arguments.

    Raises:
        ValueError: the header says something else.
    """
    described = json.loads(header)
    if not isinstance(described, dict) or not isinstance(described.get("arguments"), str):
        raise ValueError("no header")
    return str(described.get("sha256")), described["arguments"]


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
