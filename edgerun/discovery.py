"""Finds what lies in a folder: a new file there is all that it takes to add a thing of its kind."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any


def entries(package: str, attribute: str) -> dict[str, Any]:
    """Collects what the modules of a package define under one name.

    Args:
        package: full name of a package whose modules are cheap to import.
        attribute: name that an entry has in its module; a module without it is a helper.

    Returns:
        the entries by the names of their modules, in alphabetical order.
    """
    folder = importlib.import_module(package).__path__
    names = sorted(module.name for module in pkgutil.iter_modules(folder))
    modules = {name: importlib.import_module(f"{package}.{name}") for name in names}
    return {
        name: getattr(module, attribute)
        for name, module in modules.items()
        if hasattr(module, attribute)
    }
