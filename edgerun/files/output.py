"""Files that a command was told to write: asked about before the work, whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

from edgerun.errors import InputError, StorageError
from edgerun.files.plain import NotPlainError, check_replaceable
from edgerun.files.private import write_atomically


def check_output(path: Path, *, replace: bool) -> None:
    """Tells before the work whether a file can be written to a place.

    Raises:
        InputError: something has this name that may not be replaced, there is no such folder, or
            it is not writable.
    """
    if not os.path.isdir(path.parent):
        raise InputError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"cannot write {path}: no permission to write in {path.parent}")
    try:
        check_replaceable(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    if os.path.lexists(path) and not replace:
        raise InputError(f"{path} exists: choose another output, or add --force to replace it")


def write_output(
    path: Path, data: bytes, *, durable: bool = False, mode: int | None = None
) -> None:
    """Writes a file, all or nothing; an existing one is replaced. See ``write_atomically``.

    Raises:
        InputError: something else than a file has this name.
        StorageError: it cannot be written.
    """
    try:
        write_atomically(path, data, durable=durable, mode=mode)
    except NotPlainError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
