"""Registers kernels and compiles them on demand.

A kernel is made by a factory that takes compile-time constants (strings and integers only: they
become part of the key of the on-disk cache) and returns a plain function
``body(arguments, chunk)``. ``@kernel("op", fields="...")`` registers the factory; the fields
name the int64 words of its argument block, in order. Registering is enough to be compiled,
cached and covered by the conformance suite, which runs ``reference`` of the same name.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.program import Instruction

Body: TypeAlias = Callable[[int, int], None]
Factory: TypeAlias = Callable[..., Body]
SIGNATURE = "void(intp, intp)"
FAMILIES = ("attention", "elementwise", "linear", "normalize", "quantize", "repack")


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


_KERNELS: dict[str, Kernel] = {}
_COMPILED: dict[tuple[Any, ...], Any] = {}
_LOCK = threading.Lock()


def kernel(name: str, fields: str) -> Callable[[Factory], Factory]:
    """Registers a kernel factory under a name."""

    def register(make: Factory) -> Factory:
        _KERNELS[name] = Kernel(name, tuple(fields.split()), make)
        return make

    return register


@cache
def kernels() -> dict[str, Kernel]:
    """All kernels by name."""
    for family in FAMILIES:
        importlib.import_module(f"edgerun.kernels.{family}")
    return dict(_KERNELS)


@cache
def source_digest() -> str:
    """Digest of the kernel sources; compiled code of other sources is never reused."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def compile_kernel(name: str, progress: Callable[[str], None] | None = None, **params: Any) -> int:
    """Returns the address of a kernel compiled for the given constants."""
    key = (name, *sorted(params.items()))
    with _LOCK:
        if key not in _COMPILED:
            _COMPILED[key] = _compile(kernels()[name], params, progress)
        return int(_COMPILED[key].address)


def native(name: str, **params: Any) -> Callable[[int, int], None]:
    """Returns a compiled kernel as a Python function; it runs without the interpreter's lock."""
    address = compile_kernel(name, **params)
    made: Callable[[int, int], None] = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(
        address
    )
    return made


def _compile(
    chosen: Kernel, params: dict[str, Any], progress: Callable[[str], None] | None
) -> Any:
    from numba import cfunc

    if progress is not None:
        progress(f"{chosen.name} {' '.join(str(value) for value in params.values())}")
    body = chosen.make(**params)
    return cfunc(SIGNATURE, cache=True, error_model="numpy", nopython=True)(body)


def instruction(
    name: str,
    *,
    params: dict[str, Any],
    fields: dict[str, int],
    chunks: tuple[int, int, int],
    reads: set[str],
    writes: set[str],
    label: str = "",
    progress: Callable[[str], None] | None = None,
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
    """
    declared = kernels()[name].fields
    if set(declared) != set(fields):
        raise KeyError(f"kernel {name} takes {declared}, got {tuple(fields)}")
    block: NDArray[np.int64] = np.array([fields[field] for field in declared], np.int64)
    return Instruction(
        function=compile_kernel(name, progress, **params),
        arguments=block,
        size=chunks[0],
        times=chunks[1],
        divide=chunks[2],
        reads=frozenset(reads),
        writes=frozenset(writes),
        label=label or name,
    )
