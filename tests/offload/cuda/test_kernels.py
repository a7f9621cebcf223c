"""GPU kernels without a GPU: the processor's bits in Numba's simulator, and they compile to PTX.

Both in processes of their own: the simulator is chosen when Numba is imported.
"""

from __future__ import annotations

import importlib.util

import pytest

from tests.offload.cuda.simulator import simulated, told_by

CAPABILITIES = ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"]


def test_results_have_the_bits_of_the_processor() -> None:
    """And the twins of instructions, by which the simulator computes, are exact."""
    told = simulated("kernels")
    assert told["simulator"]
    assert told["differing"] == [0] * 12
    # Two rows of one expert came only once; of as many others as are remembered all came once.
    assert told["recorded"] == [0, 0, 0, 0, 0, 2, 1, 256, 0]
    assert told["queued"] == [[0, 1], 0, [False, False, True]]
    assert told["refused"] == 2
    assert told["fma"] == told["dot"] == 0
    assert told["advice"] == 0


@pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None, reason="the extra `cuda` is not installed"
)
def test_kernels_compile_for_gpus_of_seven_generations() -> None:
    compiled = told_by("ptx", *CAPABILITIES)
    assert len(compiled) == len(CAPABILITIES) * 7
    for capability, name, target, dots, doubles, flushed, fusible in compiled:
        assert target == f".target sm_{capability.replace('.', '')}"
        assert dots > 0, name
        assert doubles == 0, name  # which such GPUs compute slowly
        assert flushed == 0, name  # small numbers stay what they are
        assert fusible == 0, name  # else a sum could be rounded once where it should be twice
