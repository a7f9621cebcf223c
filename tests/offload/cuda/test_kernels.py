"""GPU kernels without a GPU: right in Numba's simulator, and they compile to PTX.

Both in processes of their own: the simulator is chosen when Numba is imported.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest

CAPABILITIES = ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"]


def told_by(module: str, *arguments: str, **environment: str) -> Any:
    """The last line that a module prints, as JSON."""
    command = [sys.executable, "-m", f"tests.offload.cuda.{module}", *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    result: dict[str, Any] = told_by("simulated", NUMBA_ENABLE_CUDASIM="1")
    assert result["simulator"]
    return result


def test_products_are_those_of_the_op(told: dict[str, Any]) -> None:
    assert len(told["products"]) == 5
    assert max(told["products"]) <= 5e-7


def test_whole_experts_are_those_of_the_op(told: dict[str, Any]) -> None:
    """An activation on a tie may be rounded the other way; none is here."""
    assert max(told["experts"]) <= 2e-6


def test_the_portable_dot_product_is_exact(told: dict[str, Any]) -> None:
    assert told["dot"] == 0


def test_weights_that_kernels_cannot_read_are_refused(told: dict[str, Any]) -> None:
    assert told["refusals"] == 2


@pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None, reason="the extra `cuda` is not installed"
)
def test_kernels_compile_for_gpus_of_seven_generations() -> None:
    compiled = told_by("ptx", *CAPABILITIES)
    assert len(compiled) == len(CAPABILITIES) * 4 * 3
    for capability, name, target, dots, doubles in compiled:
        assert target == f".target sm_{capability.replace('.', '')}"
        assert doubles == 0, name  # which such GPUs compute slowly
        assert name == "product" or dots == 0
    products = [dots for _, name, _, dots, _ in compiled if name == "product"]
    assert min(products[::2]) > 0  # the instruction
    assert max(products[1::2]) == 0  # its twin
