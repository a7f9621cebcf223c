"""Writes a folder all at once or not at all."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path

from edgerun.errors import InputError, StorageError
from edgerun.files.drafts import make_draft
from edgerun.files.private import sync

# From linux/fcntl.h and linux/fs.h.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
# What says that a name was given away meanwhile; Windows has no errors of its own for that.
_TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.EACCES if os.name == "nt" else errno.ENOTDIR}
_MOUNT = "a mount point, which cannot be replaced; choose a folder in it"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def atomic_folder(
    target: Path, *, replace: bool = False, foreign: Callable[[Path], list[str]] = lambda _: []
) -> Iterator[Path]:
    """Yields a temporary folder beside ``target`` that takes its place when the block succeeds.

    Whatever ends the block early, an interrupt included, removes the temporary folder and leaves
    an old ``target`` as it was; so does a process that is killed, but for the temporary folder.

    Args:
        target: the folder to make; where it is a link, the folder that it leads to.
        replace: whether an existing folder may be replaced.
        foreign: names the entries of an existing folder that are to stay in the new one.

    Raises:
        InputError: the target exists, or does so by the end, and is not a folder or may not be
            replaced, or an entry that is to stay has the name of a new one.
        StorageError: it cannot be written.
    """
    check_target(target, replace=replace)
    with storage_errors(target):
        target = target.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = make_draft(target)
    try:
        with storage_errors(target):
            yield draft.folder
            if replace and target.exists():
                _carry_over(target, draft.folder, foreign(target))
            _sync_all(draft.folder)
            _swap(draft.folder, target, replace=replace)
    finally:
        draft.discard()


def other_entries(folder: Path, own: Set[str]) -> list[str]:
    """Names of what lies in a folder and is no regular file with one of our names."""
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.name not in own or path.is_symlink() or not path.is_file()
    )


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
    if error.errno == errno.EBUSY:  # a mount of the file system that its parent is on
        return f"'{target}' is {_MOUNT}"
    return f"cannot write '{target}': {error.strerror or error}"


def check_target(target: Path, *, replace: bool = False) -> None:
    """Tells early whether ``atomic_folder`` would take ``target``.

    Raises:
        InputError: the target exists, and is no folder, may not be replaced, or is a mount point.
        StorageError: it cannot be looked at.
    """
    with storage_errors(target):
        parent = next((path for path in target.absolute().parents if path.exists()), target)
        exists, is_folder = target.exists(), target.is_dir()
        is_empty = is_folder and not any(target.iterdir())
        is_mount = os.path.ismount(target.resolve())
    if not parent.is_dir():
        raise InputError(f"'{target}' cannot be made, '{parent}' is a file; choose another output")
    if exists and not is_folder:
        raise InputError(f"'{target}' exists and is not a folder; choose another output")
    if is_mount:
        raise InputError(f"'{target}' is {_MOUNT}")
    if exists and not is_empty and not replace:
        raise InputError(f"'{target}' exists; choose another output, or add --force to replace it")


def _carry_over(old: Path, new: Path, names: list[str]) -> None:
    """Gives ``new`` some entries of ``old`` as well; until the swap both have them."""
    for name in names:
        if os.path.lexists(new / name):
            raise InputError(
                f"'{old}' holds a '{name}' that was not made by this command, and now it makes a "
                "file of that name; move yours away, or choose another output"
            )
        _link(old / name, new / name)


def _link(source: Path, target: Path) -> None:
    """Makes a second name of a file, of everything below a folder, or of a link itself."""
    if source.is_symlink():
        target.symlink_to(os.readlink(source))
    elif source.is_dir():
        target.mkdir()
        for entry in source.iterdir():
            _link(entry, target / entry.name)
        shutil.copystat(source, target)
    else:
        try:
            os.link(source, target)
        except OSError:  # a file system without hard links, or another one below a folder
            shutil.copy2(source, target)


def _sync_all(folder: Path) -> None:
    """Forces files and folders to the disk, so that a power cut cannot leave a torn folder."""
    for place, _, names in os.walk(folder, topdown=False):
        for name in names:
            path = Path(place, name)
            if stat.S_ISREG(path.lstat().st_mode):
                sync(path)
        sync(Path(place))


def _swap(work: Path, target: Path, *, replace: bool) -> None:
    # mkdtemp makes folders that only the owner may read.
    mask = os.umask(0)
    os.umask(mask)
    work.chmod(0o777 & ~mask)
    if replace and target.exists():
        _exchange(work, target)  # what was there is removed with the temporary folder
    else:
        _take_name(work, target)
    sync(target.parent)


def _take_name(work: Path, target: Path) -> None:
    """Renames a folder to what nothing has as its name by now, but for an empty folder."""
    if os.name == "nt":  # where not even that is replaced
        with suppress(OSError):
            target.rmdir()
    try:
        os.replace(work, target)
    except OSError as error:
        if error.errno not in _TAKEN or not os.path.lexists(target):
            raise
        raise InputError(
            f"'{target}' was made by another command while this one was at work; choose another "
            "output, or add --force to replace it"
        ) from error


def _exchange(work: Path, target: Path) -> None:
    """Swaps two folders in one step where the system can, so that there is always one."""
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
