"""Overlays are checked; damaged ones are refused and never read past their end."""

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from edgerun_hw.deploy import devicetree
from edgerun_hw.deploy.broker.boards import BY_NAME
from edgerun_hw.deploy.emulator import example_bit
from edgerun_hw.deploy.errors import PackageError
from edgerun_hw.deploy.package import Sources, make_package
from edgerun_hw.deploy.sample import sample_overlay

OVERLAY = sample_overlay("a.bit.bin")
needs_dtc = pytest.mark.skipif(not shutil.which("dtc"), reason="dtc is not installed")


def test_overlay_is_read() -> None:
    assert list(devicetree.read_properties(OVERLAY)) == [
        (("", "fragment@0"), "target-path", b"/\0"),
        (("", "fragment@0", "__overlay__"), "firmware-name", b"a.bit.bin\0"),
    ]
    devicetree.check_overlay(OVERLAY, "a.bit.bin")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no compiled device tree"),
        (b"/dts-v1/;" + bytes(100), "no compiled device tree"),
        (OVERLAY[:-1], "cut off"),
        (OVERLAY + b"x", "cut off"),
        (OVERLAY.replace(b"__overlay__", b"__overlax__"), "no __overlay__ node"),
        (OVERLAY.replace(b"firmware-name", b"firmware-nama"), "no firmware-name"),
        (sample_overlay("b.bit.bin"), "firmware-name is b.bit.bin and must be a.bit.bin"),
    ],
)
def test_unusable_overlay_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(PackageError, match=message):
        devicetree.check_overlay(data, "a.bit.bin")


def test_damaged_overlays_are_refused_or_read() -> None:
    generator = random.Random(1)
    for _ in range(3000):
        data = bytearray(OVERLAY)
        for _ in range(generator.randrange(1, 4)):
            data[generator.randrange(len(data))] = generator.choice((0, 1, 3, 255))
        try:
            for found in devicetree.read_properties(bytes(data)):
                assert len(found.value) <= len(data) and len(found.path) <= devicetree.MAX_DEPTH
        except PackageError:
            continue


@needs_dtc
def test_sample_is_what_dtc_understands(tmp_path: Path) -> None:
    (tmp_path / "x.dtbo").write_bytes(OVERLAY)
    command = ["dtc", "-I", "dtb", "-O", "dts", str(tmp_path / "x.dtbo")]
    source = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (tmp_path / "x.dtso").write_text(source)
    again = devicetree.compile_overlay(tmp_path / "x.dtso")
    read = devicetree.read_properties
    assert list(read(again)) == list(read(OVERLAY))


@needs_dtc
@pytest.mark.parametrize("board", ["kv260", "ultra96v2", "pynq-z2"])
def test_sources_of_the_boards_make_packages(tmp_path: Path, repo_root: Path, board: str) -> None:
    folder = repo_root / "hw" / "boards" / board
    (tmp_path / "x.bit").write_bytes(example_bit(BY_NAME[board]))
    base = 0x43C0_0000 if board == "pynq-z2" else 0xA000_0000
    overlay, shell = folder / "edgerun-tlmm.dtso", folder / "shell.json"
    sources = Sources(tmp_path / "x.bit", board, overlay, shell=shell, base=base)
    assert make_package(sources).manifest.board.name == board


@needs_dtc
def test_errors_of_the_compiler_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "x.dtso").write_text("/dts-v1/; nonsense")
    with pytest.raises(PackageError, match="dtc refuses .*rror"):
        devicetree.compile_overlay(tmp_path / "x.dtso")
