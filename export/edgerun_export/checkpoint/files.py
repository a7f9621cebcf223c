"""Bounded reading of untrusted files: no read allocates more than the file holds."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edgerun.errors import CheckpointError
from edgerun.files.plain import NotPlainError, open_plain
from edgerun_export.checkpoint.base import U8
from edgerun_export.nesting import check_nesting

MIB = 1 << 20
# Room for the longest real one (about 1 MB of remote quantisation settings) many times over; parsed
# JSON can take 20 times its size in memory.
CONFIG_LIMIT_BYTES = 4 * MIB
_DIGEST_PIECE_BYTES = 4 * MIB


class ByteFile:
    """A regular file read by explicit offsets.

    Plain reads instead of a memory map: a map counts as resident memory until the kernel takes
    the pages back, and turns a file that shrinks under us into a SIGBUS.

    Args:
        path: the file to open.
        inside: it was found beside others and not named by anybody, so a link may not lead out
            of the checkpoint, see ``check_inside``.

    Raises:
        CheckpointError: it is missing, not a regular file, not readable, or not the checkpoint's.
    """

    def __init__(self, path: Path, *, inside: bool = False) -> None:
        self.name = path.name
        target = check_inside(path) if inside else _resolved(path)
        try:
            self._file = os.fdopen(open_plain(target), "rb", buffering=0)
        except FileNotFoundError as error:
            raise CheckpointError(f"no file '{path}'") from error
        except NotPlainError as error:
            raise CheckpointError(f"'{path}' is not a regular file: {error.strerror}") from error
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
                filled = 0
                while filled < count:
                    nbytes = self._file.readinto(view[filled:])
                    if not nbytes:
                        raise CheckpointError(
                            f"'{self.name}' shrank while it was being read; export again"
                        )
                    filled += nbytes
        except (OSError, ValueError) as error:
            raise CheckpointError(f"cannot read '{self.name}': {error}") from error
        return out

    def sha256(self) -> str:
        """Digest of the whole file, in hexadecimal.

        Raises:
            CheckpointError: the file shrank or was closed.
        """
        total = hashlib.sha256()
        for start in range(0, self.size_bytes, _DIGEST_PIECE_BYTES):
            total.update(self.read(start, min(_DIGEST_PIECE_BYTES, self.size_bytes - start)).data)
        return total.hexdigest()

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        self._file.close()


def check_inside(path: Path) -> Path:
    """Checks that a file found in a checkpoint's folder is part of the checkpoint.

    What is read ends in a bundle that may be given away, so a link must not bring somebody's key
    into it. It may lead to another place in the folder. In a cache of the Hugging Face hub, whose
    snapshots consist of links (``models--*/snapshots/*``), it may lead to the blobs of the same
    repository.

    Returns:
        the path without links.

    Raises:
        CheckpointError: it leads elsewhere.
    """
    target, folder = _resolved(path), _resolved(path.parent)
    repository = folder.parent.parent
    in_hub_cache = folder.parent.name == "snapshots" and repository.name.startswith("models--")
    own = [folder, repository / "blobs"] if in_hub_cache else [folder]
    if not any(target.is_relative_to(each) for each in own):
        raise CheckpointError(
            f"'{path}' is a link to '{target}', outside of the checkpoint's folder; if it belongs "
            "to the checkpoint, copy it there (cp -rL copies a folder with what its links lead to)"
        )
    return target


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle; a null character
        raise CheckpointError(f"no file '{path}'") from error


def read_small(path: Path, limit_bytes: int, *, inside: bool = False) -> bytes:
    """Read a whole small file; ``inside`` as for ``ByteFile``.

    Raises:
        CheckpointError: it is missing, not regular, or larger than ``limit_bytes``.
    """
    file = ByteFile(path, inside=inside)
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
        # A link that leads nowhere is there: what it should have held is not left out silently.
        return read_small(path, limit_bytes, inside=True) if os.path.lexists(path) else None

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
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"'{what}' is not the JSON expected: {error}") from error


def decode_config(data: bytes, what: str) -> dict[str, Any]:
    """Parse a configuration.

    ``Infinity`` and ``NaN`` are taken, too: they are no JSON, but Python writes them, and so the
    configurations of some models have them. Python's reader makes objects of all there is, which
    is why nothing large is read so.

    Args:
        data: UTF-8 JSON, of at most ``CONFIG_LIMIT_BYTES``.
        what: how to call it in an error, usually the file name.

    Raises:
        CheckpointError: it is too large, nested too deep, not JSON, or not an object.
    """
    if len(data) > CONFIG_LIMIT_BYTES:
        raise CheckpointError(
            f"'{what}' has {len(data)} bytes; at most {CONFIG_LIMIT_BYTES} are accepted"
        )
    if b"Infinity" not in data and b"NaN" not in data:
        config: dict[str, Any] = decode_json(data, what)
    else:
        try:
            config = msgspec.convert(json.loads(data.decode()), dict[str, Any])
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"'{what}' is not the JSON expected: {error}") from error
    check_nesting(config, what)
    return config
