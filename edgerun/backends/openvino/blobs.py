"""Compiled networks on disk, because an NPU's compiler takes minutes.

OpenVINO's own check is not enough: it takes a blob made for other weights of the same size. So a
name is a digest of all that a network was made from; a file carries a digest of its name and
content and lies where nobody else can write (``files/private.py``); and what was loaded is compared
with the CPU like what was compiled.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from edgerun.files.private import advice, private_folder, read_private, write_atomically

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

FOLDER = "openvino"
SUFFIX = ".blob"
MAX_BYTES = 2 << 30  # of all blobs together, or beside one that is larger: they hold weights


class Blobs:
    """Blobs by name; the least recently used go first."""

    def __init__(self, root: Path, max_bytes: int = MAX_BYTES) -> None:
        """Takes the cache folder, which may not exist yet."""
        self._folder = root / FOLDER
        self._max_bytes = max_bytes
        self._has_warned = False

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Lets one process at a time make a blob; the others find it when their turn comes."""
        descriptor = self._lock(name)
        try:
            yield
        finally:
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    self._lock_path(name).unlink()  # before it is unlocked: who waits looks again
                os.close(descriptor)

    def load(self, name: str) -> bytes | None:
        """A blob as it was saved; None if there is none that may be used."""
        path = self._path(name)
        try:
            private_folder(self._folder)
            content = memoryview(read_private(path, sys.maxsize))
            with contextlib.suppress(FileNotFoundError):  # another process has just made room
                os.utime(path)
        except OSError:
            return None
        digest, blob = content[:32], content[32:]
        return bytes(blob) if digest == _digest(name, blob) else None

    def save(self, name: str, blob: bytes) -> None:
        """Keeps a blob if it can be kept; warns once if not.

        One may be larger than all are to be together: what compiles it is often another process,
        from which there is no other way.
        """
        try:
            private_folder(self._folder)
            self._make_room(len(blob) + 32, name)
            write_atomically(self._path(name), _digest(name, blob) + blob)
        except OSError as error:
            self._warn(error)

    def remove(self, name: str) -> None:
        """Forgets a blob that was wrong."""
        with contextlib.suppress(OSError):
            self._path(name).unlink()

    def _make_room(self, size: int, name: str) -> None:
        others = []
        for path in self._folder.glob(f"*{SUFFIX}"):
            if path != self._path(name):
                with contextlib.suppress(FileNotFoundError):  # another process makes room, too
                    others.append((path.stat(), path))
        sizes = [size, *(status.st_size for status, _ in others)]
        total, room = sum(sizes), self._max_bytes
        if max(sizes) > room:
            room += max(sizes)
        for status, path in sorted(others, key=lambda entry: entry[0].st_mtime_ns):
            if total <= room:
                return
            path.unlink(missing_ok=True)
            total -= status.st_size

    def _lock(self, name: str) -> int | None:
        """A descriptor whose file is locked until it is closed; None where there are no locks."""
        if sys.platform == "win32":
            return None
        path = self._lock_path(name)
        while True:
            try:
                private_folder(self._folder)
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                descriptor = os.open(path, flags, 0o600)
            except OSError as error:
                self._warn(error)
                return None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if _is_open_as(descriptor, path):
                    return descriptor
            except OSError:  # a file system without locks
                os.close(descriptor)
                return None
            except BaseException:  # Ctrl-C
                os.close(descriptor)
                raise
            os.close(descriptor)  # of a file that another process has removed

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{SUFFIX}"

    def _lock_path(self, name: str) -> Path:
        return self._folder / f"{name}.lock"

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "networks are compiled at every start, since %s cannot be used (%s): %s",
                self._folder,
                error.strerror or error,
                advice(error),
            )


def _is_open_as(descriptor: int, path: Path) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def name_of(parts: Iterable[object]) -> str:
    """The name of a blob that was made from all these."""
    digest = hashlib.sha256()
    for part in parts:
        text = repr(part).encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


def fingerprint(results: list[Any]) -> str:
    """What a network of OpenVINO's computes, but for the weights that it has inputs for."""
    places: dict[str, int] = {}
    lines: list[object] = []
    waiting = list(results)
    while waiting:
        node = waiting[-1]
        sources = [source.get_node() for source in node.input_values()]
        missing = [each for each in sources if each.get_name() not in places]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        if node.get_name() in places:
            continue
        places[node.get_name()] = len(places)
        read = [
            (places[source.get_node().get_name()], source.get_index())
            for source in node.input_values()
        ]
        lines.append((node.get_type_name(), _content_of(node), read))
    return name_of(lines)


def _content_of(node: Any) -> object:
    """What a node says besides its inputs."""
    kind = node.get_type_name()
    if kind == "Constant":
        return str(node.get_element_type()), list(node.shape), node.data.tobytes()
    if kind == "Parameter":
        return node.get_friendly_name(), str(node.get_element_type()), list(node.shape)
    return sorted(node.get_attributes().items(), key=lambda item: item[0])


def _digest(name: str, blob: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(name.encode())
    digest.update(blob)
    return digest.digest()
