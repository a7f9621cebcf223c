"""From a bitstream to tokens with the commands that a person types, on an emulated board."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from edgerun.cli import commands
from edgerun.cli.main import main
from edgerun_hw.board_side import lock
from edgerun_hw.build.boards import load_board
from edgerun_hw.deploy.broker.board.loader import FIRMWARE, OVERLAYS
from edgerun_hw.deploy.broker.board.settings import rate_file
from edgerun_hw.deploy.emulate.board import make_root
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.deploy.emulate.sample import base_of, sample_hwh, sample_overlay
from edgerun_hw.devices import deployed
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.overlay.port import DevicePort
from edgerun_hw.simulate.board.dev import EmulatedKernel
from edgerun_hw.simulate.fake import FakeDevice
from edgerun_hw.simulate.simulator import Simulator
from tests.hw.deploy.harness import KV260, Quick
from tests.support.bundles import SMALL_MODEL

NAME, MEMORY_BYTES = "edgerun-tlmm", 32 << 20
POINT = EntryPoint("fpga", "edgerun_hw.cli:register", commands.ENTRY_POINTS)
RUN = ["run", str(SMALL_MODEL), "-p", "Once upon a time", "-n", "3", "--temperature", "0", "--json"]
ON_BOARD = ["--backend", "fpga", "--device", f"board:{NAME},host=native"]
GEOMETRY = PRESETS["prefill-1500"]


@pytest.fixture
def this_board(tmp_path: Path, monkeypatch) -> Callable[[DevicePort], EmulatedKernel]:
    """Packages a bitstream, deploys it to this machine, and lets its logic run."""
    monkeypatch.setattr(commands, "added_commands", lambda: [POINT])
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "board"
    make_root(root)
    Path("app.bit").write_bytes(example_bit(KV260, 1))
    Path("app.hwh").write_bytes(sample_hwh())
    Path("app.dtbo").write_bytes(sample_overlay())
    assert main(["fpga", "package", "app.bit", "-b", "kv260", "-o", "app"]) == 0
    assert main(["fpga", "deploy", "app", "--sysroot", "board"]) == 0

    def make(logic: DevicePort) -> EmulatedKernel:
        kernel = EmulatedKernel(root, logic, base_of("kv260"), MEMORY_BYTES)
        monkeypatch.setattr(deployed, "SYSTEM", lambda: Quick(root))
        monkeypatch.setattr(deployed, "KERNEL", lambda: kernel)
        monkeypatch.setattr(lock, "PATH", str(tmp_path / "lock"))
        return kernel

    return make


@pytest.mark.fpga
def test_tokens_of_what_was_packaged_and_deployed_are_the_cpus(this_board, capsys) -> None:
    """All of a board's way but the board: device files, registers and memory of the RTL.

    In the geometry that board.toml has built, so the attention unit attends.
    """
    geometry = load_board("kv260").overlay
    assert geometry.attention
    kernel = this_board(Simulator(geometry, memory=None))
    answers = []
    for device in ([], ON_BOARD):
        capsys.readouterr()
        assert main([*RUN, "--kv-cache", "int8", *device]) == 0
        out, err = capsys.readouterr()
        assert "takes over" not in err and "Traceback" not in err
        answers.append(json.loads(out))
    assert answers[0]["ids"] == answers[1]["ids"]
    assert kernel.writes.count("sync_for_cpu") > 3 * 21  # results of every matrix and token


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "digest": (
        lambda root: (root / FIRMWARE / NAME / f"{NAME}.hwh").write_bytes(b"another"),
        "is not what the manifest says",
    ),
    "overlay": (lambda root: (root / OVERLAYS / "full").mkdir(), "overlays of somebody else"),
    "clock": (
        lambda root: (root / rate_file("zynqmp", "pl0")).write_text("99000000\n"),
        "clock pl0 runs at 99 MHz and the logic was built for",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_something_else_than_what_was_deployed_runs_nothing(this_board, capsys, what) -> None:
    root = this_board(FakeDevice(GEOMETRY, memory_bytes=2 * MEMORY_BYTES, coherent=True)).root
    change, message = CHANGES[what]
    change(root)
    capsys.readouterr()
    assert main([*RUN, *ON_BOARD]) != 0
    out, err = capsys.readouterr()
    assert not out and message in err and "Traceback" not in err
