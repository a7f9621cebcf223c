"""What code is compiled for: this machine, as LLVM sees it."""

from __future__ import annotations

from functools import cache
from typing import Any

from edgerun.kernels.host.arm import arm_features

ENTRY = "edgerun_entry"  # the symbol of compiled code


@cache
def host() -> tuple[str, str, str]:
    """Target triple, CPU name and feature list of this machine, as LLVM sees it."""
    from llvmlite import binding

    triple = binding.get_process_triple()
    try:
        features = binding.get_host_cpu_features().flatten()
    except RuntimeError:  # LLVM cannot tell on this platform
        features = ""
    extra = [f"+{name}" for name in sorted(arm_features() or ())]
    return triple, binding.get_host_cpu_name(), ",".join(filter(None, [features, *extra]))


def target_machine(cpu: str | None = None, features: str | None = None) -> Any:
    """An LLVM target machine for this process's architecture."""
    from llvmlite import binding

    _initialize()
    triple, host_cpu, host_features = host()
    return binding.Target.from_triple(triple).create_target_machine(
        cpu=host_cpu if cpu is None else cpu,
        features=host_features if features is None else features,
        opt=3,
        jit=True,
        codemodel="jitdefault",
    )


@cache
def _initialize() -> None:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()  # of assembly in kernels
