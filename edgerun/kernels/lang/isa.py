"""Instruction sets: all that tells one from another is in its record.

Nothing else compares their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
        streams: how many panels of weights are read side by side where memory is the limit;
            two are faster than four, as measured on Zen 4, and fewer broadcasts serve four.
        looks_up: from how many rows on ternary weights are looked up in tables instead, where
            multiplying is slower; 0 for never.
        raises: from how many rows of a tile on zero points of blocks raise the codes, instead of
            being multiplied by sums of the input, which takes multipliers that codes need; measured
            on Zen 4. 0 for never.
        regroups: whether many rows are faster multiplied by int8 with a scale for 128 weights than
            by weights with scales of small blocks; measured, or known of prototypes.
        bfloat16: what multiplies bfloat16, a key of ``BFLOAT16`` (``lang/bfloat16.py``); only on
            machines that have ``bfloat16_features`` as well, which the set does not ask for.
        tile: vectors of weight rows and batch rows that are multiplied together once weights are
            unpacked; their sums lie in registers.
        fuses_loads: whether operations take an operand from memory.
        subtracts_to_convert: whether sums of blocks become float32 faster by a subtraction: with
            vectors of 32 bytes Intel's cores have a third unit for additions, and convert integers
            in those that multiply.
        unpacks: from how many rows on weights are unpacked once for all rows; below, they take
            turns, as a few rows do (docs/benchmarks.md has both). 0 for never.
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
    tile: tuple[int, int] = (2, 4)
    unpacks: int = 17
    raises: int = 0
    regroups: bool = False
    bfloat16: str = ""
    bfloat16_features: tuple[str, ...] = ()
    fuses_loads: bool = True
    subtracts_to_convert: bool = False

    @property
    def float_lanes(self) -> int:
        """float32 elements of a vector."""
        return self.vector_bytes // 4


ARM: dict[str, Any] = {
    "vector_bytes": 16,
    "registers": 32,
    "shuffles": "neon",
    "fuses_loads": False,
}
# Best first. AMX multiplies matrices and does so for linear layers of many rows; all else then
# uses AVX-512. AVX-VNNI is AVX2 with the dot product of AVX-512's VNNI, which laptops have had
# since Alder Lake.
ISAS: Mapping[str, Isa] = {
    isa.name: isa
    for isa in (
        Isa(
            "amx",
            ("amx-tile", "amx-int8", "amx-bf16", "avx512bf16", *AVX512VNNI),
            vector_bytes=64,
            registers=32,
            dots="vnni",
            shuffles="x86",
            prompts="amx",
            tile=(4, 6),
            regroups=True,
            bfloat16="amx",
        ),
        Isa(
            "avx512vnni",
            AVX512VNNI,
            vector_bytes=64,
            registers=32,
            dots="vnni",
            shuffles="x86",
            streams=2,
            tile=(4, 6),
            unpacks=0,
            raises=4,
            regroups=True,
            bfloat16="avx512bf16",
            bfloat16_features=("avx512bf16",),
        ),
        Isa(
            "avxvnni",
            ("avxvnni", *AVX2),
            vector_bytes=32,
            registers=16,
            dots="vnni",
            shuffles="x86",
            looks_up=17,
            tile=(2, 6),
            subtracts_to_convert=True,
        ),
        Isa(
            "avx2",
            AVX2,
            vector_bytes=32,
            registers=16,
            dots="pairs",
            shuffles="x86",
            streams=2,
            looks_up=17,
            unpacks=32,
        ),
        Isa("i8mm", ("i8mm", "dotprod"), **ARM, dots="usdot", tile=(2, 8)),
        Isa("dotprod", ("dotprod",), **ARM, dots="sdot", tile=(2, 8)),
        Isa("neon", ("neon",), **ARM, dots="smlal", partial=2, looks_up=8),
        Isa("portable", (), 16, 16, dots="generic", looks_up=8),
    )
}
# What instructions compute, in generic code: tests their callers on any machine.
MODELS: Mapping[str, Isa] = {
    isa.name: isa
    for isa in (
        Isa("vnni_model", (), 64, 32, dots="generic", tile=(4, 6), bfloat16="avx512bf16_model"),
        Isa(
            "amx_model",
            (),
            64,
            32,
            dots="generic",
            prompts="amx",
            tile=(4, 6),
            bfloat16="amx_model",
        ),
    )
}


def isa_of(name: str) -> Isa:
    """The instruction set, or model of one, of that name.

    Raises:
        KeyError: there is none.
    """
    return ISAS.get(name) or MODELS[name]
