"""Operations whose every bit is known: a GPU's instructions, or their twins in the simulator."""

from __future__ import annotations

from numba import config

SIMULATED = bool(config.ENABLE_CUDASIM)

if SIMULATED:
    from edgerun.offload.cuda.twins import (
        add,
        divide,
        dot4,
        float_of_bits,
        fma,
        multiply,
        round_even,
    )
else:
    from edgerun.offload.cuda.instructions import (
        add,
        divide,
        dot4,
        float_of_bits,
        fma,
        multiply,
        round_even,
    )

__all__ = ["SIMULATED", "add", "divide", "dot4", "float_of_bits", "fma", "multiply", "round_even"]
