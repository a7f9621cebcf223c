"""Which instruction sets this machine has, and which one the kernels use.

The choice goes by features, never by the CPU's name, which virtual machines get wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from edgerun.env import settings
from edgerun.errors import InputError
from edgerun.kernels.host.permission import tile_refusal
from edgerun.kernels.host.processor import identity
from edgerun.kernels.jit.registry import remembered

AVX512VNNI = ("avx512f", "avx512bw", "avx512vl", "avx512vnni")
AVX2 = ("avx2", "fma", "f16c")
# Best first. Values: the LLVM features that must all be present, and vector bytes. AMX multiplies
# matrices and does so for linear layers of many rows; all else then uses AVX-512. AVX-VNNI is
# AVX2 with the dot product of AVX-512's VNNI, which laptops have had since Alder Lake.
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "amx": ("amx-tile", "amx-int8", *AVX512VNNI),
    "avx512vnni": AVX512VNNI,
    "avxvnni": ("avxvnni", *AVX2),
    "avx2": AVX2,
    "portable": (),
}
VECTOR_BYTES: Mapping[str, int] = {
    "amx": 64,
    "avx512vnni": 64,
    "avxvnni": 32,
    "avx2": 32,
    "portable": 16,
}


@cache
def host_features() -> frozenset[str]:
    """LLVM names of the features this machine has.

    LLVM is asked once, and again when the processor says something else (``host/processor.py``).
    """
    text = _ask_llvm() if identity() is None else remembered("host-features", _ask_llvm)
    return frozenset(text.decode().split())


def _ask_llvm() -> bytes:
    from llvmlite import binding

    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:  # LLVM cannot tell on this platform
        return b""
    return " ".join(sorted(name for name, present in features.items() if present)).encode()


def available_isas() -> list[str]:
    """Names of the instruction sets that can run here, best first."""
    return [name for name in REQUIRED if not obstacle(name)]


def obstacle(name: str) -> str:
    """Why an instruction set cannot run here; empty if it can.

    For AMX this asks the system for permission, where the processor has it.
    """
    if missing := [one for one in REQUIRED[name] if one not in host_features()]:
        return f"this machine lacks {', '.join(missing)}"
    return tile_refusal() if name == "amx" else ""


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
        why = f" ({obstacle(forced)})" if forced in REQUIRED else ""
        raise InputError(
            f"EDGERUN_ISA is '{forced}', but this machine can run: {', '.join(available)}{why}"
        )
    return forced
