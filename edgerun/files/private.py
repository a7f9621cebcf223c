"""Files and folders that nobody else could have written.

What edgerun keeps for later is trusted later: compiled code is run, libraries are loaded, a file
that was found whole is not looked at again. So it is used only if it is a regular file that
belongs to this user or to root and that nobody else may write, in a folder of the same kind; and
it is written such that others see the whole of it or nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from edgerun.files.plain import check_replaceable, open_plain, read_open

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
ROOT = 0
_PRIVATE = 0o600
_USUAL = 0o666  # less what umask takes away


class UnsafeError(OSError):
    """Somebody else could have written a file; ``strerror`` says why, ``filename`` which."""


def private_folder(path: Path) -> Path:
    """Makes a folder of edgerun's own, mode 0700, or checks the one that is there.

    One that this user owns and others may write is closed to them; whoever reads a file in it
    checks that file as well, so one that was put there before does no harm.

    Args:
        path: a folder that holds nothing but what edgerun writes; what it lies in is made, too.

    Returns:
        ``path``.

    Raises:
        UnsafeError: it belongs to somebody else, or others may write it and that cannot be
            changed, or it or the folder above is a link or folder of somebody else.
        OSError: it cannot be made.
    """
    _check_parent(make_folder(path.parent))
    make_folder(path)
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_DIRECTORY", 0)
    if os.name != "posix":
        return path
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR):
            raise UnsafeError(
                errno.EPERM, "it is no folder, or a link to one", str(path)
            ) from error
        raise
    try:
        _check_owner(os.fstat(descriptor), path)
        if os.fstat(descriptor).st_mode & OTHERS_WRITE:
            with contextlib.suppress(OSError):
                os.fchmod(descriptor, 0o700)
        _check(os.fstat(descriptor), path)
    finally:
        os.close(descriptor)
    return path


def make_folder(folder: Path) -> Path:
    """Makes a folder, and those above it that are missing, mode 0700; returns it.

    Raises:
        OSError: it cannot be made.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    return folder


def open_private(path: Path) -> int:
    """Opens a regular file that nobody else could have written; returns its descriptor.

    Raises:
        NotPlainError: it is no regular file.
        UnsafeError: it belongs to somebody else, or others may write it.
        OSError: it is missing or not readable.
    """
    descriptor = open_plain(path)
    try:
        _check(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_private(path: Path, limit_bytes: int) -> bytes:
    """Reads a file that nobody else could have written; see ``open_private``.

    Raises:
        TooLargeError: it has more than ``limit_bytes``; nothing was read.
    """
    descriptor = open_private(path)
    try:
        return read_open(descriptor, path, limit_bytes)
    finally:
        os.close(descriptor)


def write_atomically(
    path: Path, data: bytes, *, durable: bool = False, mode: int | None = _PRIVATE
) -> None:
    """Writes a file that appears whole or not at all; an old one is replaced.

    Args:
        path: in a folder that exists.
        data: all of its content.
        durable: reach the disk before it takes its place, so that it survives a power cut.
        mode: its permissions, which it has as soon as it appears; None for those that files of
            this process have as a rule (umask).

    Raises:
        NotPlainError: something else than a file has this name: a device, a pipe, a folder.
        OSError: the folder is not writable or the disk is full; nothing is left behind.
    """
    check_replaceable(path)
    draft = path.parent / f".{path.name}.{os.urandom(6).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    begins_with = _USUAL if mode is None else _PRIVATE
    descriptor = os.open(draft, flags | getattr(os, "O_BINARY", 0), begins_with)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if mode not in (None, _PRIVATE):
                draft.chmod(mode)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    if durable and os.name == "posix":
        sync(path.parent)


def sync(path: Path) -> None:
    """Forces a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def advice(error: OSError) -> str:
    """What a person can do about a file or folder that was refused, or cannot be written."""
    if isinstance(error, UnsafeError) and error.filename and _is_removable(error.filename):
        return (
            f"remove {error.filename}, take it over (chown, chmod go-w), "
            "or set EDGERUN_CACHE to a folder of your own"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room there, or set EDGERUN_CACHE to a folder on another disk"
    return "set EDGERUN_CACHE to a folder that can be written"


def _is_removable(path: str) -> bool:
    """Whether to remove it is good advice, as it is not of devices."""
    return any(test(path) for test in (os.path.islink, os.path.isfile, os.path.isdir))


def _check_parent(folder: Path) -> None:
    """A folder that holds private ones: others may write it if they cannot rename what is ours."""
    if os.name != "posix":
        return
    link = folder.lstat()
    if stat.S_ISLNK(link.st_mode):
        _check_owner(link, folder)
    status = folder.stat()
    _check_owner(status, folder)
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise UnsafeError(errno.EPERM, "everybody may write to it", str(folder))


def _check(status: os.stat_result, path: Path) -> None:
    if os.name != "posix":  # permissions mean something else there
        return
    _check_owner(status, path)
    if status.st_mode & OTHERS_WRITE:
        raise UnsafeError(errno.EPERM, "others than its owner may write to it", str(path))


def _check_owner(status: os.stat_result, path: Path) -> None:
    if os.name == "posix" and status.st_uid not in (ROOT, os.geteuid()):
        raise UnsafeError(errno.EPERM, f"it belongs to user {status.st_uid}", str(path))
