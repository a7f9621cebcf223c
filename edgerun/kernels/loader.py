"""Loads object code into the process; needs llvmlite's binding and no Numba."""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import binding

ENTRY = "edgerun_entry"

# Engines own the memory of the code they loaded. Worker threads may be inside that code until
# the very end of the process, so engines are never released.
_ENGINES: list[Any] = []


@cache
def host() -> tuple[str, str, str]:
    """Target triple, CPU name and feature list of this machine."""
    triple = binding.get_process_triple()
    try:
        features = binding.get_host_cpu_features().flatten()
    except RuntimeError:  # LLVM cannot tell on this platform
        features = ""
    return triple, binding.get_host_cpu_name(), features


def target_machine(cpu: str | None = None, features: str | None = None) -> Any:
    """An LLVM target machine for this process's architecture."""
    _initialize()
    triple, host_cpu, host_features = host()
    return binding.Target.from_triple(triple).create_target_machine(
        cpu=host_cpu if cpu is None else cpu,
        features=host_features if features is None else features,
        opt=3,
        jit=True,
        codemodel="jitdefault",
    )


def load_object(data: bytes) -> int:
    """Links an object made by ``compile_object``; returns the address of its entry."""
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target_machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(data))
    engine.finalize_object()
    address = int(engine.get_function_address(ENTRY))
    _ENGINES.append(engine)
    return address


@cache
def _initialize() -> None:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
