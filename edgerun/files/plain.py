"""Opens files in places that somebody else may have arranged.

A name that a model gives may lead to a symbolic link, a device, or a pipe that never ends, and
what it leads to may be exchanged while we look. So a file is opened first, without following a
link and without waiting, and looked at afterwards through its descriptor; and its size is
compared with a limit before a byte of it is read.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotPlainError(OSError):
    """There is something, but no regular file; ``strerror`` says what it is."""


class TooLargeError(OSError):
    """A file is larger than its reader accepts; ``strerror`` has both sizes."""


def is_plain_name(name: str) -> bool:
    """Whether a name can only mean something directly in a folder.

    >>> is_plain_name("model.onnx"), is_plain_name("../model.onnx"), is_plain_name("a/b")
    (True, False, False)
    """
    return name not in ("", ".", "..") and not any(char in name for char in "/\\\0")


def open_plain(path: Path) -> int:
    """Opens a regular file for reading and returns its descriptor.

    Raises:
        NotPlainError: it is something else, a symbolic link included.
        OSError: it is missing or not readable.
    """
    try:
        descriptor = os.open(path, FLAGS)
    except OSError as error:
        # What the system says of a link (ELOOP) and of a socket (ENXIO) helps nobody.
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
            raise _not_plain(path, path.lstat().st_mode) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _not_plain(path, mode)
    return descriptor


def read_plain(path: Path, limit_bytes: int) -> bytes:
    """Reads a whole regular file.

    Raises:
        NotPlainError: it is something else, a symbolic link included.
        TooLargeError: it has more than ``limit_bytes``; nothing was read.
        OSError: it is missing or not readable.
    """
    descriptor = open_plain(path)
    try:
        return read_open(descriptor, path, limit_bytes)
    finally:
        os.close(descriptor)


def read_open(descriptor: int, path: Path, limit_bytes: int) -> bytes:
    """Reads all of an open file; see ``read_plain``. ``path`` is for messages."""
    size = os.fstat(descriptor).st_size
    if size > limit_bytes:
        raise TooLargeError(
            errno.EFBIG, f"it has {size} bytes; at most {limit_bytes} are accepted", str(path)
        )
    # One more than it had: a file that grows while it is read is cut off, and found altered.
    data = os.pread(descriptor, size + 1, 0)
    while len(data) < size and (piece := os.pread(descriptor, size + 1 - len(data), len(data))):
        data += piece
    return data


def check_replaceable(path: Path) -> None:
    """Checks that a file may take a name: nothing, a file or a link has it so far.

    Raises:
        NotPlainError: a device, a pipe, a socket or a folder has it.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        raise _not_plain(path, mode)


def _not_plain(path: Path, mode: int) -> NotPlainError:
    kind = next((name for is_kind, name in KINDS if is_kind(mode)), "no regular file")
    return NotPlainError(errno.EINVAL, f"it is {kind}", str(path))
