"""Which instruction sets this machine has, and which one the kernels use.

The choice goes by features, never by the CPU's name, which virtual machines get wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from edgerun.env import settings
from edgerun.errors import InputError

# Best first. Values: the LLVM features that must all be present, and vector bytes.
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "avx512vnni": ("avx512f", "avx512bw", "avx512vl", "avx512vnni"),
    "avx2": ("avx2", "fma", "f16c"),
    "portable": (),
}
VECTOR_BYTES: Mapping[str, int] = {"avx512vnni": 64, "avx2": 32, "portable": 16}


@cache
def host_features() -> frozenset[str]:
    """LLVM names of the features this machine has."""
    from llvmlite import binding

    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:  # LLVM cannot tell on this platform
        return frozenset()
    return frozenset(name for name, present in features.items() if present)


def available_isas() -> list[str]:
    """Names of the instruction sets that can run here, best first."""
    return [name for name, needed in REQUIRED.items() if host_features().issuperset(needed)]


@cache
def selected_isa() -> str:
    """The instruction set the kernels use: ``EDGERUN_ISA``, or the best available.

    Raises:
        InputError: the environment names an unknown or unavailable instruction set.
    """
    forced = settings().isa
    available = available_isas()
    if not forced:
        return available[0]
    if forced not in available:
        raise InputError(
            f"EDGERUN_ISA is '{forced}', but this machine can run: {', '.join(available)}"
        )
    return forced
