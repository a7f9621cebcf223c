"""Registers kernels and compiles them on demand.

A kernel is made by a factory that takes compile-time constants (strings and integers) and
returns a plain function ``body(arguments, chunk)``. ``@kernel("op", fields="...")`` registers
the factory; the fields name the int64 words of its argument block, in order. Registering is
enough to be compiled, cached and covered by the conformance suite.

Compiled kernels are kept on disk. The modules that define kernels, and Numba with them, are
imported only when something has to be compiled.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.discovery import added_room, folders, import_entry
from edgerun.env import settings
from edgerun.kernels.host.processor import identity
from edgerun.kernels.jit.compile_pool import CompilePool, Job, compiler_is_here
from edgerun.kernels.jit.loader import host, load_object
from edgerun.kernels.jit.object_cache import Entry, ObjectCache
from edgerun.kernels.run.instructions import Instruction

Body: TypeAlias = Callable[[int, int], None]
Factory: TypeAlias = Callable[..., Body]
Progress: TypeAlias = Callable[[str], None]
STARTING = "starting the compiler"  # told for each kernel that is queued; others name kernels
FIELDS = "kernel-fields"  # what a file in the cache is called
WITHOUT_KERNELS = ("host", "jit", "lang", "run")  # folders
SOURCES = Path(__file__).parents[1]  # what kernels are made of lies in folders beside this one's
FORMS = SOURCES.parent / "activations"  # and in these files
ROOM = "edgerun.kernels"
DECLARED = re.compile(rb'^@kernel\(\s*"(\w+)"', re.MULTILINE)  # read where Numba is not needed
ACTIVATION = "activation"  # constant of kernels that apply such a function


@dataclass(frozen=True, slots=True)
class Kernel:
    """A registered kernel.

    Attributes:
        name: unique name.
        fields: names of its int64 arguments; field ``x`` is the address of buffer x.
        make: factory of the body.
    """

    name: str
    fields: tuple[str, ...]
    make: Factory


class Compiled:
    """A kernel: the names of its arguments, and its code as soon as somebody wants that.

    Attributes:
        fields: names of the arguments, in order.
    """

    __slots__ = ("_address", "_load", "fields")

    def __init__(self, fields: tuple[str, ...], load: Callable[[], int]) -> None:
        """Takes what will bring the code into memory and return its address."""
        self.fields = fields
        self._load: Callable[[], int] | None = load
        self._address = 0

    @property
    def address(self) -> int:
        """Address of the code, which may have to be compiled first."""
        with _LOCK:
            if self._load is not None:
                self._address = self._load()
                self._load = None  # and the object code that it holds
            return self._address


_KERNELS: dict[str, Kernel] = {}
_COMPILED: dict[str, Compiled] = {}
_LOCK = threading.RLock()


def kernel(name: str, fields: str) -> Callable[[Factory], Factory]:
    """Registers a kernel factory under a name."""

    def register(make: Factory) -> Factory:
        _KERNELS[name] = Kernel(name, tuple(fields.split()), make)
        return make

    return register


@cache
def kernels() -> dict[str, Kernel]:
    """All kernels by name; imports Numba."""
    for path in sorted(SOURCES.glob("*/*.py")):
        if path.parent.name not in WITHOUT_KERNELS and path.stem != "__init__":
            importlib.import_module(f"edgerun.kernels.{path.parent.name}.{path.stem}")
    for path in _added_files(ROOM, "*/*.py"):
        import_entry(f"{added_room(ROOM)}.{path.parent.name}.{path.stem}")
    return dict(_KERNELS)


@cache
def code_version() -> str:
    """Digest of all that compiled code depends on: sources, compiler, CPU."""
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*/*.py"), *FORMS.glob("*.py")]):
        digest.update(path.read_bytes())
    known = identity()
    processor = "\0".join(host()).encode() if known is None else known
    for part in (processor, _version("numba"), _version("llvmlite")):
        digest.update(part + b"\0")
    return digest.hexdigest()[:16]


@cache
def _added_code() -> tuple[str, frozenset[str]]:
    """Digest of what other packages add to kernels, empty if nothing; names of their kernels."""
    files = _added_files(ROOM, "*/*.py") + _added_files("edgerun.activations", "*.py")
    code = b"\0".join(path.read_bytes() for path in files)
    names = frozenset(name.decode() for name in DECLARED.findall(code))
    return hashlib.sha256(code).hexdigest()[:16] if files else "", names


def _added_files(package: str, files: str) -> list[Path]:
    room = added_room(package)
    return (
        [path for folder in folders(room) for path in sorted(Path(folder).glob(files))]
        if room
        else []
    )


def _version(package: str) -> bytes:
    """What tells versions of a package apart, without importing it or parsing its metadata."""
    found = find_spec(package)
    if found is not None and found.origin is not None:
        file = Path(found.origin).with_name("_version.py")
        if file.is_file():
            return file.read_bytes()
    from importlib.metadata import version

    return version(package).encode()


@cache
def _cache() -> ObjectCache:
    return ObjectCache(settings().cache_dir, code_version())


@cache
def _pool() -> CompilePool:
    def compile_here(job: Job) -> bytes:
        from edgerun.kernels.jit.compiler import compile_named

        return compile_named(job.name, job.params)

    pool = CompilePool(compile_here)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=pool.forget_helpers)
    return pool


def compiled(name: str, progress: Progress | None = None, **params: Any) -> Compiled:
    """A kernel for the given constants: from memory, from disk, or to be compiled.

    One that must be compiled is queued here, and waited for when its address is asked for: so
    several can be compiled at a time.
    """
    parts = [f"{key}={params[key]}" for key in sorted(params)]
    added, names = _added_code()
    if added and (name in names or ACTIVATION in params):
        parts.append(f"added={added}")
    key = "-".join([name, *parts])
    with _LOCK:
        if key not in _COMPILED:
            entry = _cache().load(key)
            _COMPILED[key] = (
                _queued(key, name, params, progress) if entry is None else _ready(entry)
            )
        return _COMPILED[key]


def _queued(key: str, name: str, params: dict[str, Any], progress: Progress | None) -> Compiled:
    if progress is not None:
        progress(STARTING)
    fields, job = _fields()[name], Job(name, params)
    _pool().submit(job)

    def load() -> int:
        entry = Entry(_pool().finish(job, progress), fields)
        _cache().save(key, entry)
        return load_object(entry.code)

    return Compiled(fields, load)


def queued() -> int:
    """Kernels that this process had to compile or still has to."""
    return _pool().submitted


def _ready(entry: Entry) -> Compiled:
    return Compiled(entry.fields, lambda: load_object(entry.code))


@cache
def _fields() -> dict[str, tuple[str, ...]]:
    """Names of the arguments of everything that can be compiled."""

    def ask() -> bytes:
        known = None if compiler_is_here() else _pool().fields()
        if known is None:
            from edgerun.kernels.jit.compiler import fields_of_all

            known = fields_of_all()
        return json.dumps(known).encode()

    added, _ = _added_code()
    stored = remembered(f"{FIELDS}-{added}" if added else FIELDS, ask)
    return {name: tuple(names) for name, names in json.loads(stored).items()}


def remembered(name: str, make: Callable[[], bytes]) -> bytes:
    """What depends on nothing but ``code_version``: from disk, or made and kept there."""
    entry = _cache().load(name)
    if entry is None:
        entry = Entry(make(), ())
        _cache().save(name, entry, warn=False)
    return entry.code


def all_kept() -> bool:
    """Whether all that was compiled could be written to disk."""
    return _cache().all_kept


def native(name: str, **params: Any) -> Callable[[int, int], None]:
    """Returns a compiled kernel as a Python function; it runs without the interpreter's lock."""
    address = compiled(name, **params).address
    made: Callable[[int, int], None] = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(
        address
    )
    return made


def instruction(
    name: str,
    *,
    params: dict[str, Any],
    fields: dict[str, int],
    chunks: tuple[int, int, int],
    reads: set[str],
    writes: set[str],
    label: str = "",
    progress: Progress | None = None,
) -> Instruction:
    """Binds a kernel to its arguments.

    Args:
        name: of a registered kernel.
        params: compile-time constants.
        fields: value of every field of the kernel.
        chunks: ``(size, times, divide)`` as in ``Instruction``.
        reads: names of buffers it reads.
        writes: names of buffers it writes.
        label: for traces.
        progress: told before a kernel is compiled.

    Raises:
        KeyError: no such kernel, or ``fields`` are not its fields.
    """
    code = compiled(name, progress, **params)
    if set(code.fields) != set(fields):
        raise KeyError(f"kernel {name} takes {code.fields}, got {tuple(fields)}")
    block: NDArray[np.int64] = np.array([fields[field] for field in code.fields], np.int64)
    return Instruction(
        code=code,
        arguments=block,
        fields=code.fields,
        size=chunks[0],
        times=chunks[1],
        divide=chunks[2],
        reads=frozenset(reads),
        writes=frozenset(writes),
        label=label or name,
    )
