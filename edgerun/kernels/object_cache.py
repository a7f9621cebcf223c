"""Keeps object code on disk, in a folder per version of the sources, the compiler and the CPU.

An entry is one line of JSON (digest of the code, kernel's fields) and the code. Entries are
written to a temporary file and renamed, and a digest guards against a disk that filled up, so a
reader sees a whole entry or none. A folder that cannot be written costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

PREFIX = "kernels-"
FOLDERS_KEPT = 4  # other versions of edgerun may share the cache


@dataclass(frozen=True, slots=True)
class Entry:
    """Object code and the names of the arguments it reads."""

    code: bytes
    fields: tuple[str, ...]


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

    @property
    def folder(self) -> Path:
        """Where the entries of this version lie."""
        return self.root / (PREFIX + self.version)

    def load(self, name: str) -> Entry | None:
        """Returns an entry, or None where there is none or it is damaged."""
        try:
            header, _, code = (self.folder / name).read_bytes().partition(b"\n")
            described = json.loads(header)
        except (OSError, ValueError):
            return None
        if described.get("sha256") != hashlib.sha256(code).hexdigest():
            return None
        return Entry(code, tuple(described["fields"]))

    def save(self, name: str, entry: Entry, *, warn: bool = True) -> None:
        """Writes an entry; warns once where that is not possible, unless it is of little use."""
        import tempfile  # with what it imports, 10 ms of a start

        digest = hashlib.sha256(entry.code).hexdigest()
        header = json.dumps({"sha256": digest, "fields": entry.fields}).encode()
        try:
            self._make_folder()
            with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
                try:
                    file.write(header + b"\n" + entry.code)
                    file.close()
                    os.replace(file.name, self.folder / name)
                except OSError:
                    os.unlink(file.name)
                    raise
        except OSError as error:
            if warn and self.all_kept:
                self.all_kept = False
                logger.warning(
                    "compiled kernels cannot be kept in %s (%s): every start will compile them; "
                    "set EDGERUN_CACHE to a folder that can be written",
                    self.folder,
                    error.strerror or error,
                )

    def _make_folder(self) -> None:
        if self.folder.is_dir():
            return
        import shutil

        self.folder.mkdir(parents=True, exist_ok=True)
        others = [path for path in self.root.glob(PREFIX + "*") if path != self.folder]
        others.sort(key=_modified, reverse=True)
        for path in others[FOLDERS_KEPT - 1 :]:
            shutil.rmtree(path, ignore_errors=True)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
