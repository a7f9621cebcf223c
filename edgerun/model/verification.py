"""Weights are hashed once: the first time a file is used, while it is prepared for running.

A file that had the digest of its manifest is remembered in the cache folder, by what the system
says of it: device, inode, size, and the times of the last changes of its content and of itself.
Whoever writes to a file changes the latter, and cannot set it back. The folder is one that nobody
else can write to (``files/private.py``); without one, files are hashed every time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from edgerun.env import settings
from edgerun.errors import BundleError
from edgerun.files.private import open_private, private_folder, write_atomically
from edgerun.graph.external_data import OpenFile
from edgerun.model.manifest import FileEntry

logger = logging.getLogger(__name__)

FOLDER = "verified"
MAX_REMEMBERED = 1024
PIECE_BYTES = 1 << 20
# A file may be written to twice within the grain of the system's times.
SETTLED_NS = 1_000_000_000
PATIENCE_S = 1.0  # before somebody is told what is waited for
CHECKING = "checking the weights, first run only"


class Verification:
    """Hashes files in the background; leaving the block ends that."""

    def __init__(
        self, folder: Path, files: Mapping[str, OpenFile], entries: Mapping[str, FileEntry]
    ) -> None:
        """Takes the files that are to be hashed.

        Args:
            folder: of the files, for messages.
            files: by name.
            entries: size and digest that they should have, by name.
        """
        self._folder = folder
        self._files = dict(files)
        self._entries = entries
        self._fault: Exception | None = None
        self._is_cancelled = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Verification:
        if self._files:
            self._thread = threading.Thread(target=self._run, name="edgerun-verify", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_cancelled = True
        if self._thread is not None:
            self._thread.join()

    def finish(self, progress: Callable[[str], None] = lambda text: None) -> None:
        """Waits until all files are hashed.

        Args:
            progress: told what is waited for, if it takes long.

        Raises:
            BundleError: one is not what the manifest says.
        """
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
            if self._thread.is_alive():
                progress(CHECKING)
            self._thread.join()
        if self._fault is not None:
            raise self._fault

    def _has_ended(self) -> bool:
        return self._is_cancelled

    def _run(self) -> None:
        try:
            for name, file in self._files.items():
                entry = self._entries[name]
                check_digest(self._folder / name, file, entry, is_cancelled=self._has_ended)
        except Exception as error:  # belongs to whoever waits
            self._fault = error


def check_digest(
    path: Path,
    file: OpenFile,
    entry: FileEntry,
    *,
    remember: bool = True,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> None:
    """Hashes an open file.

    Args:
        path: for messages.
        file: to be hashed.
        entry: what it should be.
        remember: that its digest is right.
        is_cancelled: asked often; once it says so, nothing more is done.

    Raises:
        BundleError: it is something else.
    """
    before = os.fstat(file.descriptor)
    digest, offset = hashlib.sha256(), 0
    while piece := os.pread(file.descriptor, PIECE_BYTES, offset):
        digest.update(piece)
        offset += len(piece)
        if is_cancelled():
            return
    _compare(path, digest.hexdigest(), entry)
    after = os.fstat(file.descriptor)
    if _record(before, entry) != _record(after, entry):
        raise BundleError(f"{path} was changed while it was read: try again")
    is_settled = time.time_ns() - after.st_ctime_ns > SETTLED_NS
    if remember and is_settled:
        _remember(path, _record(after, entry))


def check_content(path: Path, data: bytes, entry: FileEntry) -> None:
    """Compares the content of a file with its digest.

    Raises:
        BundleError: it is something else.
    """
    _compare(path, hashlib.sha256(data).hexdigest(), entry)


def is_remembered(file: OpenFile, entry: FileEntry) -> bool:
    """Whether an open file, as it is now, was found to have its digest before."""
    record = _record(os.fstat(file.descriptor), entry)
    try:
        os.close(open_private(_folder() / record))
    except OSError:
        return False
    return True


def _compare(path: Path, digest: str, entry: FileEntry) -> None:
    if digest != entry.sha256:
        raise BundleError(
            f"{path} does not match the digest in the manifest: it is damaged or altered; "
            "copy or export the model again"
        )


def _folder() -> Path:
    return settings().cache_dir / FOLDER


def _record(status: os.stat_result, entry: FileEntry) -> str:
    """Name of what is remembered of a file in a state, with a digest."""
    state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return hashlib.sha256(repr((state, entry.sha256)).encode()).hexdigest()


def _remember(path: Path, record: str) -> None:
    """Leaves a record; its content is for people alone."""
    try:
        folder = private_folder(_folder())
        write_atomically(folder / record, json.dumps({"file": str(path)}).encode() + b"\n")
        records = list(folder.iterdir())
        records.sort(key=lambda file: file.stat().st_mtime, reverse=True)
        for old in records[MAX_REMEMBERED:]:
            old.unlink()
    except OSError as error:
        logger.info("%s will be hashed again: %s", path, error.strerror)
