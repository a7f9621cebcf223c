"""What dtc makes of our sources is what the samples are, and what boards take."""

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from edgerun_hw.deploy import devicetree
from edgerun_hw.deploy.broker.application.manifest import MANIFEST, read_manifest
from edgerun_hw.deploy.broker.board.boards import BOARDS
from edgerun_hw.deploy.broker.formats.fdt import read_tree
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.deploy.emulate.sample import (
    base_of,
    sample_hwh,
    sample_overlay,
    sample_package,
    sample_tree,
)
from edgerun_hw.deploy.errors import PackageError
from edgerun_hw.deploy.package import Sources, make_package

pytestmark = pytest.mark.skipif(not shutil.which("dtc"), reason="dtc is not installed")


@pytest.mark.parametrize("board", BOARDS)
def test_sample_is_what_dtc_understands(tmp_path: Path, board: str) -> None:
    (tmp_path / "x.dtbo").write_bytes(sample_overlay(board=board))
    command = ["dtc", "-q", "-I", "dtb", "-O", "dtb", "-o", "y.dtbo", "x.dtbo"]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert read_tree((tmp_path / "y.dtbo").read_bytes()) == sample_tree(board=board)


@pytest.mark.parametrize("board", BOARDS)
def test_overlay_is_written_from_the_description(tmp_path: Path, board: str) -> None:
    """Rates, widths and addresses are the design's; nothing is named as others name theirs."""
    (tmp_path / "x.bit").write_bytes(example_bit(BOARDS[board]))
    (tmp_path / "x.hwh").write_bytes(sample_hwh(board, 50_000_000))
    package = make_package(Sources(tmp_path / "x.bit", board))
    tree = dict(read_tree(package.files[package.manifest.overlay]).walk())
    names = [path.rpartition("/")[2] for path in tree if "/__overlay__/" in path]
    assert f"edgerun-tlmm@{base_of(board):x}" in names
    assert all(name.startswith("edgerun-") for name in names)
    clock = next(node for path, node in tree.items() if path.endswith("/edgerun-clock0"))
    assert clock.properties["assigned-clock-rates"] == (49_999_998).to_bytes(4, "big")
    assert not any("interrupts" in node.properties for node in tree.values())


def test_port_widths_of_the_design_are_in_the_overlay(first) -> None:
    manifest = read_manifest(first[MANIFEST])
    widths = {"S_AXI_HPC0_FPD": 128, "S_AXI_HP3_FPD": 32, "M_AXI_HPM0_FPD": 128}
    text = devicetree.write_overlay(dataclasses.replace(manifest, port_widths=widths))
    assert "config-afi = <0 0x0>, <1 0x0>, <10 0x2>, <11 0x2>, <14 0x200>;" in text
    assert "afi" not in devicetree.write_overlay(dataclasses.replace(manifest, port_widths={}))


@pytest.mark.parametrize(
    ("board", "clock", "resets"),
    [("kv260", "zynqmp_clk 71", "zynqmp_reset 116"), ("pynq-z2", "clkc 15", "")],
)
def test_clocks_and_resets_have_the_kernels_numbers(board: str, clock: str, resets: str) -> None:
    """dt-bindings/clock/xlnx-zynqmp-clk.h, reset/xlnx-zynqmp-resets.h; zynq-7000.dtsi."""
    files = sample_package(example_bit(BOARDS[board]), board=board)
    text = devicetree.write_overlay(read_manifest(files[MANIFEST]))
    assert f"assigned-clocks = <&{clock}>;" in text
    assert f"resets = <&{resets}>" in text if resets else "resets" not in text


def test_ports_of_a_zynq_7000_have_a_node_each() -> None:
    files = sample_package(example_bit(BOARDS["pynq-z2"]), board="pynq-z2")
    manifest = read_manifest(files[MANIFEST])
    widths = {"S_AXI_HP0": 64, "S_AXI_HP3": 32}
    text = devicetree.write_overlay(dataclasses.replace(manifest, port_widths=widths))
    (narrow,) = re.findall(r"edgerun-afi@f800b000 \{[^}]*", text)
    assert "reg = <0xf800b000 0x1000>;" in narrow and "xlnx,afi-width = <1>;" in narrow
    assert text.count("edgerun-afi@") == 2 and "xlnx,afi-width = <0>;" in text


def test_errors_of_the_compiler_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "x.dtso").write_text("/dts-v1/; nonsense")
    with pytest.raises(PackageError, match="dtc refuses .*rror"):
        devicetree.compile_overlay(tmp_path / "x.dtso")
