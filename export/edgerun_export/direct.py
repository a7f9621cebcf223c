"""Bundles of checkpoints that somebody loads without exporting them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from edgerun.values import Notice

INTERVAL_S = 10.0
DOING = {
    "read": "reading",
    "weights": "writing weights",
    "files": "writing configuration",
    "finish": "finishing",
}


def make_bundle(checkpoint: str, folder: Path, progress: Callable[[str], None]) -> None:
    """Makes a bundle in the formats that suit the checkpoint.

    Args:
        checkpoint: a file, a folder, or a hub id.
        folder: of the bundle, which is not there.
        progress: told how far it is, now and then, and what a user should know of the bundle.

    Raises:
        InputError, UnsupportedError, StorageError: as of ``export``.
    """
    from edgerun_export.pipeline import export

    said = time.monotonic()

    def tell(step: str, fraction: float) -> None:
        nonlocal said
        if time.monotonic() - said >= INTERVAL_S:
            said = time.monotonic()
            progress(Notice(f"{DOING.get(step, step)}: {fraction:.0%}"))

    for warning in export(checkpoint, folder, progress=tell).warnings:
        progress(Notice(warning))
