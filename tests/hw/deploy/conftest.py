"""What packages of the tests are made of."""

import shutil
from pathlib import Path

import pytest

from edgerun_hw.deploy.broker.board.boards import BOARDS
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.deploy.emulate.sample import sample_overlay
from edgerun_hw.deploy.package import Sources


@pytest.fixture
def sources(tmp_path: Path, repo_root: Path) -> Sources:
    bit = tmp_path / "design.bit"
    bit.write_bytes(example_bit(BOARDS["kv260"]))
    bit.with_suffix(".dtbo").write_bytes(sample_overlay(hertz=250_000_000))
    description = repo_root / "hw/edgerun_hw/simulate/board/tlmm.hwh"
    shutil.copyfile(description, bit.with_suffix(".hwh"))
    return Sources(bit, "kv260", bit.with_suffix(".dtbo"))
