"""The two ways of choosing, to be compared in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgerun.engine.chooser.compiled import PATIENCE, SOURCE

WAYS = ("NumPy", "kernels")


@contextmanager
def choosing_by(way: str) -> Iterator[None]:
    """Has all choosers go that way; kernels are compiled before, if they are not there."""
    kernels = SOURCE.kernels or SOURCE.wait()
    SOURCE._asked = PATIENCE  # so that nothing is compiled meanwhile
    SOURCE.kernels = kernels if way == "kernels" else None
    try:
        yield
    finally:
        SOURCE.kernels = kernels
