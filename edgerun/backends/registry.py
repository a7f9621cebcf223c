"""Finds back-ends by name: the files beside this one, and other packages' entry points."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from edgerun.errors import InputError

if TYPE_CHECKING:
    from edgerun.backends.base import Backend

# Best first; a module with a function make().
BUILT_IN = ("cpu", "reference", "onnxruntime")
ENTRY_POINTS = "edgerun.backends"


def backend_names() -> list[str]:
    """Names of all back-ends, present or not, best first."""
    return [*BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINTS))]


def make_backend(name: str) -> Backend:
    """Makes the back-end called ``name``.

    Raises:
        InputError: there is none of that name.
    """
    backend: Backend
    if name in BUILT_IN:
        backend = importlib.import_module(f"edgerun.backends.{name}").make()
        return backend
    for point in entry_points(group=ENTRY_POINTS):
        if point.name == name:
            backend = point.load()()
            return backend
    raise InputError(f"no back-end is called '{name}': there are {', '.join(backend_names())}")
