"""Temporary folders beside a target: each locked by its process, so that a dead one's is known."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

if sys.platform != "win32":
    import fcntl

SUFFIX = ".edgerun-part"
_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class Draft:
    """A folder that its process fills.

    Attributes:
        folder: the folder.
        lock: open descriptor of it that holds the lock; the system lets go when the process ends.
    """

    folder: Path
    lock: int

    def discard(self) -> None:
        """Removes whatever has the folder's name by now, and lets go of the lock."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self.lock)


def make_draft(target: Path) -> Draft:
    """Makes an empty folder beside ``target``, in a parent that exists.

    Raises:
        OSError: the parent cannot be written.
    """
    for _ in range(_ATTEMPTS):
        name = tempfile.mkdtemp(prefix=f".{target.name}.", suffix=SUFFIX, dir=target.parent)
        lock = os.open(name, os.O_RDONLY)
        # Before it was locked, another process may have taken the folder for a dead one's.
        if _lock(lock) is not False and os.path.exists(name):
            return Draft(Path(name), lock)
        os.close(lock)
    raise OSError(f"temporary folders in '{target.parent}' vanish as soon as they are made")


def lock_folder(folder: Path) -> int | None:
    """Makes a folder, if it is not there, and locks it as long as the descriptor is open.

    Returns:
        the descriptor, to be closed; None if another process, or this one, has locked it.

    Raises:
        OSError: it cannot be made.
    """
    for _ in range(_ATTEMPTS):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
        if _lock(descriptor) is False:
            os.close(descriptor)
            return None
        # Before it was locked, whoever had it may have removed it.
        if folder.exists() and os.path.samestat(os.fstat(descriptor), folder.stat()):
            return descriptor
        os.close(descriptor)
    raise OSError(f"'{folder}' vanishes as soon as it is made")


def remove_abandoned(parent: Path) -> list[str]:
    """Removes the drafts in ``parent`` whose processes were killed; returns their names.

    Those of other users and those that may be in use are left alone.
    """
    if not parent.is_dir() or not hasattr(os, "O_DIRECTORY"):
        return []
    return [path.name for path in sorted(parent.glob(f".*{SUFFIX}")) if _remove_if_dead(path)]


def _remove_if_dead(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return False
        if _lock(descriptor) is not True:
            return False
        shutil.rmtree(path, ignore_errors=True)
        return not path.exists()
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool | None:
    """Locks a folder; ``False`` if another process has it, ``None`` if there are no locks here."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
