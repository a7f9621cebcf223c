"""All that can be compiled, ours and what other packages add. Imports Numba."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any

from edgerun.discovery import added_room, import_entry
from edgerun.kernels.jit.compiler import compile_object
from edgerun.kernels.jit.declare import FUNCTIONS, KERNELS, Declared
from edgerun.kernels.jit.sources import SOURCES, added_files, declaring

ROOM = "edgerun.kernels"


@cache
def kernels() -> Mapping[str, Declared]:
    """All kernels by name."""
    for path in declaring(SOURCES):
        importlib.import_module("edgerun." + path.removesuffix(".py").replace("/", "."))
    for file in added_files(ROOM, "*/*.py"):
        import_entry(f"{added_room(ROOM)}.{file.parent.name}.{file.stem}")
    return dict(KERNELS)


def signatures() -> dict[str, str]:
    """The arguments, as declared, of everything that ``compile_named`` knows."""
    return {name: declared.arguments for name, declared in _compilable().items()}


def compile_named(name: str, params: dict[str, Any]) -> bytes:
    """Object code of a kernel, or of another declared function, by its name.

    Raises:
        KeyError: there is none of that name.
    """
    declared = _compilable()[name]
    return compile_object(declared.make(**params), declared.types, returns=declared.returns)


def _compilable() -> dict[str, Declared]:
    return {**kernels(), **FUNCTIONS}
