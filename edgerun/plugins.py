"""What is found by lying in a folder: modules of edgerun, and those that other packages add.

A room such as ``engine.sampling`` is the folder ``edgerun/engine/sampling``. Another package adds
to it with a module of the namespace package ``edgerun_plugins.engine.sampling``: it installs a file
``edgerun_plugins/engine/sampling/NAME.py`` in folders without ``__init__.py``, so that any number
of packages may add to the same room. A folder is looked for in microseconds; entry points, which
are read from the metadata of every installed package, would take 30 ms of every start.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

NAMESPACE = "edgerun_plugins"


def modules(room: str, own: str = "edgerun") -> Iterator[ModuleType]:
    """Imports the modules of a room, our own first, each by name.

    Args:
        room: dotted path of the folder, such as ``engine.sampling``.
        own: package that has the room.
    """
    for package in (f"{own}.{room}", f"{NAMESPACE}.{room}"):
        for module in pkgutil.iter_modules(_folders(package)):
            yield importlib.import_module(f"{package}.{module.name}")


def _folders(package: str) -> list[str]:
    """Where the modules of a package are; nowhere if no package adds to that room."""
    try:
        return list(importlib.import_module(package).__path__)
    except ModuleNotFoundError as error:
        if package.startswith(NAMESPACE) and f"{package}.".startswith(f"{error.name}."):
            return []
        raise
