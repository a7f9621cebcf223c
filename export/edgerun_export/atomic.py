"""Writes a folder all at once or not at all."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgerun.errors import InputError, StorageError

# From linux/fcntl.h and linux/fs.h.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def atomic_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yields a temporary folder beside ``target`` that takes its place when the block succeeds.

    Whatever ends the block early, an interrupt included, removes the temporary folder and leaves
    an old ``target`` as it was.

    Args:
        target: the folder to make.
        replace: whether an existing folder may be replaced.

    Raises:
        InputError: the target exists, and is not a folder or may not be replaced.
        StorageError: it cannot be written.
    """
    check_target(target, replace=replace)
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    try:
        with storage_errors(target):
            yield work
            _sync(work)
            _swap(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def storage_errors(target: Path) -> Iterator[None]:
    """Turns operating system errors while writing ``target`` into a ``StorageError``."""
    try:
        yield
    except OSError as error:
        raise StorageError(_explain(error, target)) from error


def _explain(error: OSError, target: Path) -> str:
    if error.errno in _FULL:
        return f"no space left while writing '{target}'; free some and run the command again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission to write '{target}'; choose another folder"
    return f"cannot write '{target}': {error.strerror or error}"


def check_target(target: Path, *, replace: bool = False) -> None:
    """Tells early whether ``atomic_folder`` would take ``target``.

    Raises:
        InputError: the target exists, and is not a folder or may not be replaced.
        StorageError: it cannot be looked at.
    """
    with storage_errors(target):
        parent = next((path for path in target.absolute().parents if path.exists()), target)
        exists, is_folder = target.exists(), target.is_dir()
        is_empty = is_folder and not any(target.iterdir())
    if not parent.is_dir():
        raise InputError(f"'{target}' cannot be made, '{parent}' is a file; choose another output")
    if exists and not is_folder:
        raise InputError(f"'{target}' exists and is not a folder; choose another output")
    if exists and not is_empty and not replace:
        raise InputError(f"'{target}' exists; choose another output, or add --force to replace it")


def _sync(folder: Path) -> None:
    """Forces files and folder to the disk, so that a power cut cannot leave a torn bundle."""
    for path in [*folder.iterdir(), folder]:
        _sync_path(path)


def _sync_path(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _swap(work: Path, target: Path) -> None:
    # mkdtemp makes folders that only the owner may read.
    mask = os.umask(0)
    os.umask(mask)
    work.chmod(0o777 & ~mask)
    if target.exists():
        _exchange(work, target)  # what was there is removed with the temporary folder
    else:
        os.replace(work, target)
    _sync_path(target.parent)


def _exchange(work: Path, target: Path) -> None:
    """Swaps two folders in one step where the system can, so that there is always a bundle."""
    libc = ctypes.CDLL(None, use_errno=True)
    rename = getattr(libc, "renameat2", None)
    paths = (_AT_FDCWD, os.fsencode(work), _AT_FDCWD, os.fsencode(target))
    if rename is not None and rename(*paths, _RENAME_EXCHANGE) == 0:
        return
    old = work.with_suffix(".old")
    os.replace(target, old)
    try:
        os.replace(work, target)
    except OSError:
        os.replace(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)
