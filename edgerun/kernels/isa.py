"""Which instruction sets this machine has, and which one the kernels use.

The choice goes by features, never by the CPU's name, which virtual machines get wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from edgerun.env import settings
from edgerun.errors import InputError
from edgerun.kernels.host.arm import arm_features
from edgerun.kernels.host.permission import tile_refusal
from edgerun.kernels.host.processor import identity
from edgerun.kernels.jit.service import remembered
from edgerun.kernels.lang.isa import ISAS, Isa

# By a feature that the system must permit a process to use: asks for that; why it is refused.
PERMISSIONS: Mapping[str, Callable[[], str]] = {"amx-tile": tile_refusal}


@cache
def host_features() -> frozenset[str]:
    """LLVM names of the features this machine has.

    LLVM is asked once, and again when the processor says something else (``processor.py``).
    """
    if (features := arm_features()) is not None:
        return features
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
    return [name for name in ISAS if not obstacle(name)]


def obstacle(name: str) -> str:
    """Why an instruction set cannot run here; empty if it can.

    For AMX this asks the system for permission, where the processor has it.
    """
    isa = ISAS[name]
    if missing := [feature for feature in isa.features if feature not in host_features()]:
        return f"this machine lacks {', '.join(missing)}"
    return "".join(PERMISSIONS[feature]() for feature in isa.features if feature in PERMISSIONS)


def bfloat16_multiplier(isa: Isa) -> str:
    """What multiplies bfloat16 where an instruction set is used; empty if nothing here does."""
    return isa.bfloat16 if host_features().issuperset(isa.bfloat16_features) else ""


@cache
def selected_isa() -> Isa:
    """The instruction set the kernels use: ``EDGERUN_ISA``, or the best available.

    Raises:
        InputError: the environment names an unknown or unavailable instruction set.
    """
    forced = settings().isa
    available = available_isas()
    if not forced:
        return ISAS[available[0]]
    if forced not in available:
        why = f" ({obstacle(forced)})" if forced in ISAS else ""
        raise InputError(
            f"EDGERUN_ISA is '{forced}', but this machine can run: {', '.join(available)}{why}"
        )
    return ISAS[forced]
