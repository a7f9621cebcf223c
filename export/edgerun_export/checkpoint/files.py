"""Bounded reading of untrusted files: no read allocates more than the file holds."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edgerun.errors import CheckpointError
from edgerun_export.checkpoint.base import U8

MIB = 1 << 20
# Room for the longest real one (about 1 MB of remote quantisation settings) many times over; parsed
# JSON can take 20 times its size in memory.
CONFIG_LIMIT_BYTES = 4 * MIB


class ByteFile:
    """A regular file read by explicit offsets.

    Plain reads instead of a memory map: a map counts as resident memory until the kernel takes
    the pages back, and turns a file that shrinks under us into a SIGBUS.

    Args:
        path: the file to open.

    Raises:
        CheckpointError: it is missing, not a regular file, or not readable.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        require_regular_file(path)
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise CheckpointError(f"cannot open '{path}': {error.strerror}") from error
        self.size_bytes = os.fstat(self._file.fileno()).st_size
        self._lock = threading.Lock()

    def read(self, offset: int, count: int) -> U8:
        """Read exactly ``count`` bytes at ``offset`` as a fresh uint8 array of shape ``[count]``.

        Raises:
            CheckpointError: the range lies outside the file, or the file shrank or was closed.
        """
        if offset < 0 or count < 0 or offset + count > self.size_bytes:
            raise CheckpointError(
                f"'{self.name}' is truncated: {count} bytes at offset {offset} were expected, "
                f"but the file has {self.size_bytes}; download it again"
            )
        out = np.empty(count, np.uint8)
        view = memoryview(out)  # type: ignore[arg-type]  # NumPy has no __buffer__ before 3.12
        try:
            with self._lock:
                self._file.seek(offset)
                done = 0
                while done < count:
                    got = self._file.readinto(view[done:])
                    if not got:
                        raise CheckpointError(
                            f"'{self.name}' shrank while it was being read; export again"
                        )
                    done += got
        except (OSError, ValueError) as error:
            raise CheckpointError(f"cannot read '{self.name}': {error}") from error
        return out

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        self._file.close()


def require_regular_file(path: Path) -> None:
    """Check that a path names a regular file (a pipe or device would block or never end).

    Raises:
        CheckpointError: it is missing, a folder, or something else.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise CheckpointError(f"no file '{path}'") from error
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"'{path}' is not a regular file")


def read_small(path: Path, limit_bytes: int) -> bytes:
    """Read a whole small file.

    Raises:
        CheckpointError: it is missing, not regular, or larger than ``limit_bytes``.
    """
    file = ByteFile(path)
    try:
        if file.size_bytes > limit_bytes:
            raise CheckpointError(
                f"'{path.name}' has {file.size_bytes} bytes; at most {limit_bytes} are accepted"
            )
        return file.read(0, file.size_bytes).tobytes()
    finally:
        file.close()


def optional_reader(folder: Path, limit_bytes: int) -> Callable[[str], bytes | None]:
    """Make a function that reads a file of ``folder`` by name, or returns ``None`` without one."""

    def read(name: str) -> bytes | None:
        path = folder / name
        return read_small(path, limit_bytes) if path.exists() else None

    return read


def decode_json(data: bytes, what: str, kind: Any = dict[str, Any]) -> Any:
    """Parse JSON bytes into ``kind`` (a msgspec type).

    Args:
        data: UTF-8 JSON.
        what: how to call it in an error, usually the file name.
        kind: expected type.

    Raises:
        CheckpointError: it is not JSON, or not of that shape.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CheckpointError(f"'{what}' is not the JSON expected: {error}") from error
