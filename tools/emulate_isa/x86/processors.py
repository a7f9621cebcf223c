"""The processors that kernels are compiled for, and the models of Bochs that stand for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OSFXSR, OSXMMEXCPT, PAE, OSXSAVE = 1 << 9, 1 << 10, 1 << 5, 1 << 18
SSE_STATE, AVX_STATE, AVX512_STATE, AMX_STATE = 0, 0x07, 0xE7, 0x600E7

# Bochs 2.7 and 3.0 refuse gathers and scatters whose indices are in a register above 15.
NO_INDEX_VECTORS = "+prefer-no-gather,+prefer-no-scatter"


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor.

    Attributes:
        cpu: LLVM's name of it.
        model: the name of Bochs.
        isas: instruction sets of ``edgerun.kernels.isa`` that it has, best first.
        state: register sets to enable in XCR0; 0 for a processor without that register.
        features: changes to what LLVM knows of the processor.
    """

    cpu: str
    model: str
    isas: tuple[str, ...]
    state: int
    features: str = ""

    @property
    def cr4(self) -> int:
        """Control bits that the vector registers need."""
        return PAE | OSFXSR | OSXMMEXCPT | (OSXSAVE if self.state else 0)


# Cases that fail for a fault of the emulator, and the fault. They pass on hardware (AVX2).
EMULATOR_DEFECTS: Mapping[str, str] = {
    "cache_write-*-fp16-(40,1)": "Bochs 2.7 (not 3.0): vcvtps2ph rounds ties up, not to even",
}
PROCESSORS: Mapping[str, Processor] = {
    processor.cpu: processor
    for processor in (
        Processor(
            "icelake-client",
            "corei7_icelake_u",
            ("avx512vnni", "avx2", "portable"),
            AVX512_STATE,
            features=f"-gfni,{NO_INDEX_VECTORS}",  # Bochs 2.7 inverts the bits that it gives
        ),
        Processor(  # Bochs 3.0 or later
            "sapphirerapids",
            "sapphire_rapids",
            ("amx", "avx512vnni", "avx2", "portable"),
            AMX_STATE,
            features=NO_INDEX_VECTORS,
        ),
        Processor(  # Bochs 3.0 or later
            "arrowlake", "arrow_lake", ("avxvnni", "avx2", "portable"), AVX_STATE
        ),
        Processor("haswell", "corei7_haswell_4770", ("avx2", "portable"), AVX_STATE),
        Processor("nehalem", "corei5_lynnfield_750", ("portable",), SSE_STATE),
    )
}
