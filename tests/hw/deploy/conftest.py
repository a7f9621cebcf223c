"""What packages of the tests are made of, and the commands that make and deploy them."""

import shutil
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from edgerun.cli import commands
from edgerun.cli.main import main
from edgerun_hw.deploy.broker.board.boards import BOARDS
from edgerun_hw.deploy.emulate.board import make_root
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.deploy.emulate.sample import sample_overlay
from edgerun_hw.deploy.package import Sources

KV260 = BOARDS["kv260"]
POINT = EntryPoint("fpga", "edgerun_hw.cli:register", commands.ENTRY_POINTS)


@pytest.fixture
def sources(tmp_path: Path, repo_root: Path) -> Sources:
    bit = tmp_path / "design.bit"
    bit.write_bytes(example_bit(BOARDS["kv260"]))
    bit.with_suffix(".dtbo").write_bytes(sample_overlay(hertz=250_000_000))
    description = repo_root / "hw/edgerun_hw/simulate/board/tlmm.hwh"
    shutil.copyfile(description, bit.with_suffix(".hwh"))
    return Sources(bit, "kv260", bit.with_suffix(".dtbo"))


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command line; returns exit code, stdout and stderr."""
    monkeypatch.setattr(commands, "added_commands", lambda: [POINT])

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main(["fpga", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return run


@pytest.fixture
def place(tmp_path: Path, monkeypatch) -> Path:
    """A folder with an emulated board and two packages, which is also the current folder."""
    monkeypatch.chdir(tmp_path)
    make_root(tmp_path / "board")
    for seed, name in enumerate(("one", "two")):
        (tmp_path / f"{name}.bit").write_bytes(example_bit(KV260, seed, 80_000))
        (tmp_path / f"{name}.dtbo").write_bytes(sample_overlay())
    return tmp_path
