"""The folder that a bundle goes to, and what must not be lost there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgerun.errors import InputError
from edgerun.files.drafts import lock_folder
from edgerun.files.folder import storage_errors
from edgerun_export.bundle_files import BUNDLE_FILES, foreign_entries, listed_files


@contextmanager
def calibration_folder(out: Path, *, calibrates: bool) -> Iterator[Path]:
    """Where calibration keeps layers that are done, until the bundle is; no other export's then.

    Args:
        out: the bundle's folder.
        calibrates: whether there will be any; if not, nothing is made.

    Raises:
        InputError: another export to ``out`` has it.
        StorageError: it cannot be made.
    """
    out = out.resolve()
    folder = out.parent / f".{out.name}.edgerun-calibration"
    if not calibrates:
        yield folder
        return
    with storage_errors(folder):
        lock = lock_folder(folder)
    if lock is None:
        raise InputError(
            f"another export to '{out}' is fitting weights, which it keeps in '{folder.name}'; "
            "wait until it has ended, or choose another output"
        )
    try:
        yield folder
    finally:
        with suppress(OSError):  # that it is not empty, or gone
            folder.rmdir()
        os.close(lock)


def protect(out: Path, source: str | Path) -> None:
    """Refuses to replace what no export wrote: ``--force`` with a wrong folder would delete it.

    Raises:
        InputError: ``out`` holds the source, files without a manifest, or files of the user's with
            names that a bundle needs, or whoever is in it would find it gone.
        StorageError: it cannot be read.
    """
    with storage_errors(out):
        is_here = out.is_dir() and os.path.samefile(out, os.curdir)
        is_free = not out.is_dir() or not any(out.iterdir())
    if is_here:
        raise InputError(
            f"'{out}' is the working folder, which another would take the place of; choose a "
            "folder in it, or go elsewhere first"
        )
    if is_free:
        return
    if out.resolve() in (Path(source).resolve(), *Path(source).resolve().parents):
        raise InputError(f"'{out}' holds the checkpoint '{source}'; choose another output")
    if listed_files(out) is None:
        raise InputError(
            f"'{out}' is no bundle, so --force does not replace it; choose another output, "
            "or delete it yourself"
        )
    clashes = sorted(BUNDLE_FILES.intersection(foreign_entries(out)))
    if clashes:
        raise InputError(
            f"'{out}' holds '{clashes[0]}', which its manifest does not list and a bundle may need "
            "the name of; move it away, or choose another output"
        )
