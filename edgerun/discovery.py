"""Finds what lies in a folder: a new file there is all that it takes to add a thing of its kind.

Other packages add to the same folders. What ``edgerun/ops`` is to edgerun, ``edgerun_plugins/ops``
is to all of them, and ``edgerun_plugins/export/architectures`` what
``edgerun_export/architectures`` is to the exporter: a namespace package, whose folders have no
``__init__.py``, so that any number of packages may install files there. To look for a folder takes
microseconds; entry points, which are read from the metadata of every installed package, would take
30 ms of every start.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgerun.errors import InputError
from edgerun.values import shown

ADDED = "edgerun_plugins"


def entries(package: str, attribute: str) -> dict[str, Any]:
    """Collects what the modules of a package define under one name.

    Args:
        package: full name of a package whose modules are cheap to import.
        attribute: name that an entry has in its module; a module without it is a helper.

    Returns:
        The entries by the names of their modules: ours in alphabetical order, then those of other
        packages.

    Raises:
        InputError: a file of another package cannot be imported, or has the name of one of ours.
    """
    modules = {name: import_entry(path) for name, path in modules_of(package).items()}
    return {
        name: getattr(module, attribute)
        for name, module in modules.items()
        if hasattr(module, attribute)
    }


def entry_names(package: str, attribute: str) -> list[str]:
    """Names of the entries, read from the files without importing them, for help pages.

    Args:
        package: full name of a package, of which no more than the folder is looked at.
        attribute: what modules define at the beginning of a line.
    """
    defines = re.compile(rf"^(?:def |class )?{attribute}\b", re.MULTILINE)
    return [name for name, path in modules_of(package).items() if defines.search(_text(path))]


def entry_named(package: str, attribute: str, option: str, name: object) -> Any:
    """Imports one entry of a package.

    Args:
        package: full name of a package, of which only the one module is imported.
        attribute: name that an entry has in its module.
        option: what asks for it, for the error.
        name: of the entry.

    Raises:
        InputError: there is none of this name, or its file cannot be imported.
    """
    entry = _entry(package, attribute, name) if isinstance(name, str) else None
    if entry is None:
        names = ", ".join(sorted(entry_names(package, attribute)))
        raise InputError(f"{option} is {shown(name)}; expected one of {names}")
    return entry


def modules_of(package: str) -> dict[str, str]:
    """Full names of a package's modules, and of those that other packages add, by short name.

    Raises:
        InputError: an added one has the name of one of ours.
    """
    modules: dict[str, str] = {}
    for room in filter(None, (package, added_room(package))):
        for name in sorted(module.name for module in pkgutil.iter_modules(folders(room))):
            if name in modules:
                raise InputError(
                    f"{folders(room)[0]} holds {name}, which is the name of one of edgerun's own "
                    "files: rename the file, or uninstall the package that it came with"
                )
            modules[name] = f"{room}.{name}"
    return modules


def added_room(package: str) -> str | None:
    """The package where others add to one of ours; None if nobody adds anything anywhere."""
    return f"{ADDED}.{package.removeprefix('edgerun')[1:]}" if _anything_added() else None


def folders(package: str) -> list[str]:
    """Where the modules of a package are; nowhere if there is none."""
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:
        return []
    return list(spec.submodule_search_locations or ()) if spec else []


def import_entry(path: str) -> Any:
    """Imports a module that ``modules_of`` found.

    Raises:
        InputError: it is another package's, and cannot be imported.
    """
    try:
        return importlib.import_module(path)
    except Exception as error:
        if not path.startswith(ADDED):
            raise
        raise InputError(
            f"the file {path.replace('.', '/')}.py, which another package adds, cannot be "
            f"imported: {type(error).__name__}: {error}"
        ) from error


@cache
def _entry(package: str, attribute: str, name: str) -> Any:
    path = modules_of(package).get(name)
    return getattr(import_entry(path), attribute, None) if path else None


@cache
def _anything_added() -> bool:
    return find_spec(ADDED) is not None


def _text(path: str) -> str:
    room, _, name = path.rpartition(".")
    for folder in map(Path, folders(room)):
        for file in (folder / f"{name}.py", folder / name / "__init__.py"):
            if file.is_file():
                return file.read_text("utf-8")
    raise FileNotFoundError(path)
