"""The tool that measures a GPU: in the simulator everything that it says is called simulated."""

from __future__ import annotations

import importlib.util

import pytest

from tests.offload.cuda.simulator import simulated


def test_all_steps_run_in_the_simulator_and_are_called_simulated() -> None:
    told = simulated("bench")
    assert told["code"] == 0
    assert told["lines"][0] == "simulated: no time below is any GPU's"
    assert told["title"].startswith("simulated: ") and told["bases"] == ["assumed"]
    begins = [line.split(":")[0].split(",")[0] for line in told["lines"][1:]]
    assert begins == [
        *["copy to the GPU"] * 2,
        "a small copy",
        "launch of a kernel",
        *["an expert of 0.00 MB"] * 2,
        "2 experts of 0.00 MB",
        *["a layer"] * 2,
        *["bundle"] * 2,
        begins[-1],
    ]
    assert told["lines"][-2].endswith("the same tokens")


@pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is not None, reason="the extra `cuda` is installed"
)
def test_without_a_gpu_nothing_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    from tools.bench.cuda.__main__ import main

    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("nothing was measured: ")
    assert "the extra `cuda` is not installed" in captured.err
