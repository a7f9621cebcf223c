"""What dtc makes of our sources is what the samples are, and what boards take."""

import shutil
import subprocess
from pathlib import Path

import pytest

from edgerun_hw.deploy import devicetree
from edgerun_hw.deploy.broker.board.boards import BY_NAME
from edgerun_hw.deploy.broker.formats.fdt import read_tree
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.deploy.emulate.sample import BASES, sample_overlay, sample_tree
from edgerun_hw.deploy.errors import PackageError
from edgerun_hw.deploy.package import Sources, make_package

pytestmark = pytest.mark.skipif(not shutil.which("dtc"), reason="dtc is not installed")


@pytest.mark.parametrize("board", BY_NAME)
def test_sample_is_what_dtc_understands(tmp_path: Path, board: str) -> None:
    (tmp_path / "x.dtbo").write_bytes(sample_overlay(board=board))
    command = ["dtc", "-q", "-I", "dtb", "-O", "dtb", "-o", "y.dtbo", "x.dtbo"]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert read_tree((tmp_path / "y.dtbo").read_bytes()) == sample_tree(board=board)


@pytest.mark.parametrize("board", BY_NAME)
def test_sources_of_the_boards_make_packages(tmp_path: Path, repo_root: Path, board: str) -> None:
    folder = repo_root / "hw" / "boards" / board
    (tmp_path / "x.bit").write_bytes(example_bit(BY_NAME[board]))
    overlay, shell = folder / "edgerun-tlmm.dtso", folder / "shell.json"
    sources = Sources(tmp_path / "x.bit", board, overlay, shell=shell, base=BASES[board])
    assert make_package(sources).manifest.board.name == board


def test_errors_of_the_compiler_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "x.dtso").write_text("/dts-v1/; nonsense")
    with pytest.raises(PackageError, match="dtc refuses .*rror"):
        devicetree.compile_overlay(tmp_path / "x.dtso")
