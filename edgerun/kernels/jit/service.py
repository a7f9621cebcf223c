"""Serves compiled kernels: from memory, from disk, or made by the compiler.

The modules that declare kernels, and Numba with them, are imported only when something has to be
compiled.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

from edgerun.env import settings
from edgerun.forks import in_forked_child
from edgerun.kernels.jit.compile_pool import CompilePool, Job, compiler_is_here
from edgerun.kernels.jit.loader import load_object
from edgerun.kernels.jit.object_cache import Entry, ObjectCache
from edgerun.kernels.jit.sources import added_code, code_version
from edgerun.kernels.lang.signature import Signature, signature

Progress: TypeAlias = Callable[[str], None]
STARTING = "starting the compiler"  # told for each kernel that is queued; others name kernels
SIGNATURES = "signatures"  # what a file in the cache is called
ACTIVATION = "activation"  # constant of kernels that apply such a function


class Compiled:
    """A kernel: its arguments, and its code as soon as somebody wants that.

    Attributes:
        signature: of the kernel.
    """

    __slots__ = ("_address", "_load", "_lock", "signature")

    def __init__(self, arguments: str, load: Callable[[], int]) -> None:
        """Takes the arguments as declared, and what brings the code into memory."""
        self.signature: Signature = signature(arguments)
        self._load: Callable[[], int] | None = load
        self._address = 0
        self._lock = threading.Lock()

    @property
    def address(self) -> int:
        """Address of the code, which may have to be compiled first."""
        with self._lock:
            if self._load is not None:
                self._address = self._load()
                self._load = None  # and the object code that it holds
            return self._address

    def renew_lock(self) -> None:
        """For a forked child: whoever of its parent's threads held the lock is not there."""
        self._lock = threading.Lock()


_COMPILED: dict[str, Compiled] = {}
_LOCK = threading.RLock()


def _begin_child() -> None:
    global _LOCK
    _LOCK = threading.RLock()
    for kernel in _COMPILED.values():
        kernel.renew_lock()


in_forked_child(_begin_child)


def compiled(name: str, progress: Progress | None = None, **params: Any) -> Compiled:
    """A kernel for the given constants: from memory, from disk, or to be compiled.

    One that must be compiled is queued here, and waited for when its address is asked for: so
    several can be compiled at a time.

    Raises:
        KeyError: there is no kernel of that name.
    """
    key = _key(name, params)
    with _LOCK:
        kernel = _kept(key)
        if kernel is None:
            kernel = _COMPILED[key] = _queued(key, name, params, progress)
        return kernel


def is_kept(name: str, **params: Any) -> bool:
    """Whether ``compiled`` has a kernel from memory or from disk."""
    with _LOCK:
        return _kept(_key(name, params)) is not None


def _key(name: str, params: dict[str, Any]) -> str:
    parts = [f"{key}={params[key]}" for key in sorted(params)]
    added, names = added_code()
    if added and (name in names or ACTIVATION in params):
        parts.append(f"added={added}")
    return "-".join([name, *parts])


def _kept(key: str) -> Compiled | None:
    if key not in _COMPILED and (entry := _cache().load(key)) is not None:
        _COMPILED[key] = _ready(entry)
    return _COMPILED.get(key)


def native(name: str, **params: Any) -> Callable[[int, int], None]:
    """Returns a compiled kernel as a Python function; it runs without the interpreter's lock."""
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
    function: Callable[[int, int], None] = kind(compiled(name, **params).address)
    return function


def native_function(name: str, arguments: int, *, result: bool) -> Callable[..., Any]:
    """Returns a compiled function of so many numbers; it runs without the interpreter's lock."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int64 if result else None, *[ctypes.c_int64] * arguments)
    return kind(compiled(name).address)


def remembered(name: str, make: Callable[[], bytes]) -> bytes:
    """What depends on nothing but ``code_version``: from disk, or made and kept there."""
    entry = _cache().load(name)
    if entry is None:
        entry = Entry(make(), "")
        _cache().save(name, entry, warn=False)
    return entry.code


def all_kept() -> bool:
    """Whether all that was compiled could be written to disk."""
    return _cache().all_kept


@cache
def _cache() -> ObjectCache:
    return ObjectCache(settings().cache_dir, code_version())


@cache
def _pool() -> CompilePool:
    def compile_here(job: Job) -> bytes:
        from edgerun.kernels.jit.catalogue import compile_named

        return compile_named(job.name, job.params)

    pool = CompilePool(compile_here)
    in_forked_child(pool.forget_helpers)
    return pool


def _queued(key: str, name: str, params: dict[str, Any], progress: Progress | None) -> Compiled:
    if progress is not None:
        progress(STARTING)
    arguments, job = _signatures()[name], Job(name, params)
    _pool().submit(job)

    def load() -> int:
        entry = Entry(_pool().finish(job, progress), arguments)
        _cache().save(key, entry)
        return load_object(entry.code)

    return Compiled(arguments, load)


def _ready(entry: Entry) -> Compiled:
    return Compiled(entry.arguments, lambda: load_object(entry.code))


@cache
def _signatures() -> dict[str, str]:
    """The arguments, as declared, of everything that can be compiled."""

    def ask() -> bytes:
        answer = None if compiler_is_here() else _pool().signatures()
        if answer is None:
            from edgerun.kernels.jit.catalogue import signatures

            answer = signatures()
        return json.dumps(answer).encode()

    added, _ = added_code()
    stored = remembered(f"{SIGNATURES}-{added}" if added else SIGNATURES, ask)
    arguments: dict[str, str] = json.loads(stored)
    return arguments
