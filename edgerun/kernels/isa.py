"""Which instruction sets there are, which this machine has, and which one the kernels use.

The choice goes by features, never by the CPU's name, which virtual machines get wrong. All that
tells one set from another is in its record: nothing else compares their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from edgerun.env import settings
from edgerun.errors import InputError
from edgerun.kernels.host.permission import tile_refusal
from edgerun.kernels.host.processor import arm_features, identity
from edgerun.kernels.jit.registry import remembered

AVX512VNNI = ("avx512f", "avx512bw", "avx512vl", "avx512vnni")
AVX2 = ("avx2", "fma", "f16c")


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set.

    Attributes:
        name: what kernels' constants and ``EDGERUN_ISA`` call it.
        features: what a machine must have, by LLVM's names.
        vector_bytes: bytes of a vector.
        registers: how many vectors the registers hold.
        dots: how products of bytes are summed, a key of ``DOTS`` (``lang/dot.py``).
        partial: how many registers a partial sum takes.
        shuffles: which instructions look up and narrow bytes, a key of ``SHUFFLES``
            (``linear/trit_tiles.py``); empty for generic code.
        prompts: how many rows are multiplied: the kernels' names begin so.
        streams: how many panels of weights a single row reads side by side; two are faster than
            four where memory is the limit, as measured on Zen 4, and fewer broadcasts serve four.
        looks_up: from how many rows on ternary weights are looked up in tables instead, where
            multiplying is slower; 0 for never.
        refusal: asks the system for permission; why this process has none, or nothing.
    """

    name: str
    features: tuple[str, ...]
    vector_bytes: int
    registers: int
    dots: str
    partial: int = 1
    shuffles: str = ""
    prompts: str = "gemm"
    streams: int = 4
    looks_up: int = 0
    refusal: Callable[[], str] = str

    @property
    def float_lanes(self) -> int:
        """float32 elements of a vector."""
        return self.vector_bytes // 4


# Best first. AMX multiplies matrices and does so for linear layers of many rows; all else then
# uses AVX-512. AVX-VNNI is AVX2 with the dot product of AVX-512's VNNI, which laptops have had
# since Alder Lake.
ISAS: Mapping[str, Isa] = {
    isa.name: isa
    for isa in (
        Isa(
            "amx",
            ("amx-tile", "amx-int8", *AVX512VNNI),
            vector_bytes=64,
            registers=32,
            dots="vnni",
            shuffles="x86",
            prompts="amx",
            refusal=tile_refusal,
        ),
        Isa("avx512vnni", AVX512VNNI, 64, 32, dots="vnni", shuffles="x86", streams=2),
        Isa("avxvnni", ("avxvnni", *AVX2), 32, 16, dots="vnni", shuffles="x86"),
        Isa("avx2", AVX2, 32, 16, dots="pairs", shuffles="x86", streams=2, looks_up=17),
        Isa("i8mm", ("i8mm", "dotprod"), 16, 32, dots="usdot", shuffles="neon"),
        Isa("dotprod", ("dotprod",), 16, 32, dots="sdot", shuffles="neon"),
        Isa("neon", ("neon",), 16, 32, dots="smlal", partial=2, shuffles="neon", looks_up=8),
        Isa("portable", (), 16, 16, dots="generic", looks_up=8),
    )
}
# What instructions compute, in generic code: tests their callers on any machine.
MODELS: Mapping[str, Isa] = {
    isa.name: isa
    for isa in (
        Isa("vnni_model", (), 64, 32, dots="generic"),
        Isa("amx_model", (), 64, 32, dots="generic", prompts="amx"),
    )
}


def isa_of(name: str) -> Isa:
    """The instruction set, or model of one, of that name.

    Raises:
        KeyError: there is none.
    """
    return ISAS.get(name) or MODELS[name]


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
    return isa.refusal()


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
