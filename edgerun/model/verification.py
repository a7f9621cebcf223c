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
from typing import TypeAlias

from edgerun.env import settings
from edgerun.errors import BundleError
from edgerun.files.private import open_private, private_folder, read_private, write_atomically
from edgerun.graph.external_data import OpenFile
from edgerun.model.manifest import FileEntry

logger = logging.getLogger(__name__)

FOLDER = "verified"
MAX_REMEMBERED = 1024
MAX_RECORD_BYTES = 1 << 16
PIECE_BYTES = 1 << 20
# A file may be written to twice within the grain of the system's times.
SETTLED_NS = 1_000_000_000
PATIENCE_S = 1.0  # before somebody is told what is waited for
CHECKING = "checking the weights of this model, once"
_State: TypeAlias = tuple[int, ...]
_DIGESTS: dict[_State, str] = {}  # that this process has found


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
    state = _state(os.fstat(file.descriptor))
    digest = _hash(file.descriptor, is_cancelled)
    if not digest:
        return
    _compare(path, digest, entry)
    after = os.fstat(file.descriptor)
    if _state(after) != state:
        raise BundleError(f"{path} was changed while it was read: try again")
    if remember and _is_settled(after):
        _remember(path, _record(state, entry.sha256))


def digest_of(path: Path, descriptor: int) -> str:
    """SHA-256 of an open file for which no manifest has one; hashed once in each state.

    Args:
        path: for people.
        descriptor: of the file.

    Raises:
        BundleError: it was changed while it was read.
    """
    state = _state(os.fstat(descriptor))
    digest = _DIGESTS.get(state) or _remembered_digest(state)
    if not digest:
        digest = _hash(descriptor)
        after = os.fstat(descriptor)
        if _state(after) != state:
            raise BundleError(f"{path} was changed while it was read: try again")
        if _is_settled(after):
            _remember(path, _record(state, ""), digest)
    _DIGESTS[state] = digest
    return digest


def check_content(path: Path, data: bytes, entry: FileEntry) -> None:
    """Compares the content of a file with its digest.

    Raises:
        BundleError: it is something else.
    """
    _compare(path, hashlib.sha256(data).hexdigest(), entry)


def is_remembered(file: OpenFile, entry: FileEntry) -> bool:
    """Whether an open file, as it is now, was found to have its digest before."""
    record = _record(_state(os.fstat(file.descriptor)), entry.sha256)
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


def _hash(descriptor: int, is_cancelled: Callable[[], bool] = lambda: False) -> str:
    """SHA-256 of an open file; empty if it was cancelled."""
    digest, offset = hashlib.sha256(), 0
    while piece := os.pread(descriptor, PIECE_BYTES, offset):
        digest.update(piece)
        offset += len(piece)
        if is_cancelled():
            return ""
    return digest.hexdigest()


def _state(status: os.stat_result) -> _State:
    """What another number of shows that a file was changed."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_settled(status: os.stat_result) -> bool:
    return time.time_ns() - status.st_ctime_ns > SETTLED_NS


def _record(state: _State, digest: str) -> str:
    """Name of what is remembered of a file in a state, with the digest that it should have."""
    return hashlib.sha256(repr((state, digest)).encode()).hexdigest()


def _remembered_digest(state: _State) -> str:
    """The digest that was found of a file in a state; empty if none was."""
    try:
        content = json.loads(read_private(_folder() / _record(state, ""), MAX_RECORD_BYTES))
        return str(content["sha256"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def _remember(path: Path, record: str, digest: str = "") -> None:
    """Leaves a record; but for a digest that no manifest has, its content is for people alone."""
    content = {"file": str(path)} | ({"sha256": digest} if digest else {})
    try:
        folder = private_folder(_folder())
        write_atomically(folder / record, json.dumps(content).encode() + b"\n")
        records = list(folder.iterdir())
        records.sort(key=lambda file: file.stat().st_mtime, reverse=True)
        for old in records[MAX_REMEMBERED:]:
            old.unlink()
    except OSError as error:
        logger.info("%s will be hashed again: %s", path, error.strerror)
